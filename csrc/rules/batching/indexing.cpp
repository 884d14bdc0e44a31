// Indexing, gathering and scattering.

#include <algorithm>
#include <optional>
#include <vector>

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// op(x, dim, index, source, ...), on tensors of one rank, each batched or expanded.
bool by_elements(BatchedCall& call, size_t) {
  bool any_batched = false;
  for (size_t i = 0; i < call.size(); ++i) {
    if (call.has_tensor(i)) {
      any_batched = any_batched || call.is_batched(i);
      if (call.rank(i) != call.rank(0)) {
        return false;
      }
    }
  }
  const auto dim = BatchedCall::physical(call[1].toInt(), call.rank(0));
  if (!dim || !any_batched) {
    return false;
  }
  return call.give([&] {
    Args args = call.args_with([&](size_t i) { return call.expanded(i); });
    args[1] = *dim;
    return call.call(std::move(args));
  });
}

c10::List<std::optional<Tensor>> as_list(const std::vector<Tensor>& indices) {
  c10::List<std::optional<Tensor>> list;
  for (const Tensor& index : indices) {
    list.push_back(index.defined() ? std::optional<Tensor>(index) : std::nullopt);
  }
  return list;
}

// The indices of x[indices], undefined for a dimension without one, and the number of runs of
// adjacent indices: with one run, the indexed dimensions stay in place; with more, they move to the
// front.
struct Indices {
  std::vector<Tensor> all;
  int64_t runs = 0;
  bool any_batched = false;

  Indices(const BatchedCall& call, const c10::IValue& given) {
    bool was_index = false;
    for (const c10::IValue& each : given.toListRef()) {
      const bool is_index = each.isTensor() && each.toTensor().defined();
      runs += is_index && !was_index ? 1 : 0;
      was_index = is_index;
      all.push_back(is_index ? each.toTensor() : Tensor());
      any_batched = any_batched || (is_index && call.is_batched(all.back()));
    }
  }
};

// index.Tensor(x, indices)
bool index(BatchedCall& call, size_t) {
  auto [indices, runs, any_batched] = Indices(call, call[1]);
  if (runs != 1) {
    return false;
  }
  if (!any_batched && call.is_batched(0)) {
    const bool has_rank = static_cast<int64_t>(indices.size()) <= call.rank(0);
    return has_rank && call.give([&] {
      indices.insert(indices.begin(), Tensor());
      return at::index(call.value(0), as_list(indices));
    });
  }
  const bool is_one = !indices.empty() && indices[0].defined() && indices.size() == 1;
  if (any_batched && !call.is_batched(0) && is_one && indices[0].scalar_type() == at::kLong) {
    return call.give([&] { return at::index(call.tensor(0), as_list({call.value(indices[0])})); });
  }
  return false;
}

bool is_mask(const Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// index_put(x, indices, values, ...), where samples have different indices, or the indices are not
// adjacent: the sample's number becomes an additional index, next to the first one. torch's rule of
// index_put_ permutes the values' dimensions wrongly in the first case if a dimension without an
// index comes first, and rejects values in the second.
bool index_put(BatchedCall& call, size_t) {
  const bool is_in_place = call.op().is_in_place;
  const Indices given(call, call[1]);
  const auto is_first = [](const Tensor& index) { return index.defined(); };
  const auto before = std::find_if(given.all.begin(), given.all.end(), is_first);
  int64_t picked = 0; // dimensions of x that are indexed
  int64_t rank = 0;   // of all indices, broadcast together
  for (const Tensor& index : given.all) {
    if (!index.defined()) {
      continue;
    }
    if (is_mask(index) && (call.is_batched(index) || index.dim() == 0)) {
      return false;
    }
    picked += is_mask(index) ? index.dim() : 1;
    rank = std::max(rank, is_mask(index) ? 1 : index.dim());
  }
  const int64_t rank_of_values = call.rank(0) - picked + rank;
  if ((!given.any_batched && given.runs == 1) || (is_in_place && !call.is_batched(0)) ||
      picked > call.rank(0) || call.rank(2) > rank_of_values) {
    return false;
  }
  const int64_t at = given.runs == 1 ? before - given.all.begin() : 0;
  const auto put = [&] {
    std::vector<Tensor> indices(at);
    at::SymDimVector sizes(rank + 1, 1);
    sizes[0] = call.batch_size();
    indices.push_back(
        at::arange(sizes[0], call.tensor(0).options().dtype(at::kLong)).reshape_symint(sizes));
    for (auto index = given.all.begin() + at; index != given.all.end(); ++index) {
      if (!index->defined()) {
        indices.emplace_back();
      } else if (call.is_batched(*index)) {
        indices.push_back(BatchedCall::raised(call.value(*index), rank));
      } else if (is_mask(*index)) {
        const auto places = index->nonzero().unbind(1);
        indices.insert(indices.end(), places.begin(), places.end());
      } else {
        indices.push_back(*index);
      }
    }
    const Tensor values = call.is_batched(2) ? call.value(2) : call.tensor(2).unsqueeze(0);
    Args args = call.args_with([&](size_t i) { return call.tensor(i); });
    args[0] = (is_in_place ? call.value(0) : call.expanded(0)).movedim(0, at);
    args[1] = as_list(indices);
    args[2] = BatchedCall::raised(values, rank_of_values).movedim(0, at);
    return call.call(std::move(args)).movedim(at, 0);
  };
  return is_in_place ? call.write(put) : call.give(put);
}

// embedding(weight, indices, padding, scale by frequency, sparse): the arguments after the indices
// only affect the gradient.
bool embedding(BatchedCall& call, size_t) {
  if (call.only(1)) {
    return call.run();
  }
  const bool is_plain = call[2].isInt() && call[2].toInt() < 0 && !call.flag(3) && !call.flag(4);
  if (!is_plain || !call.only(0) || call.rank(0) != 2) {
    return false;
  }
  return call.give([&] {
    const Tensor weight = call.value(0);
    const Tensor& indices = call.tensor(1);
    if (indices.dim() == 1) {
      return at::index_select(weight, 1, indices);
    }
    at::SymDimVector sizes(indices.sym_sizes());
    sizes.insert(sizes.begin(), weight.sym_size(0));
    sizes.push_back(weight.sym_size(2));
    return at::index_select(weight, 1, indices.reshape({-1})).view_symint(sizes);
  });
}

// repeat_interleave(repeats), whose result is as long as the sum of a sample's numbers. Samples
// that differ in length are refused; torch's rule refuses all since 2.15, unless it is told the
// length.
bool repeats(BatchedCall& call, size_t) {
  if (!call.only(0) || !call[1].isNone()) {
    return false;
  }
  return call.give([&] {
    const Tensor value = call.value(0);
    std::vector<Tensor> samples = value.unbind();
    for (Tensor& sample : samples) {
      sample = at::repeat_interleave(sample);
    }
    return samples.empty() ? at::empty({0, 0}, value.options()) : at::stack(samples);
  });
}

} // namespace

void add_batched_indexing(BatchingTable& rules) {
  rules.add({"index_select"}, {at_dim, 1}); // one index for all samples
  rules.add({"gather", "scatter.src", "scatter.value", "scatter_add"}, {by_elements});
  rules.add({"index.Tensor"}, {index});
  rules.add({"index_put", "index_put_", "_index_put_impl_"}, {index_put});
  rules.add({"embedding"}, {embedding});
  rules.add({"repeat_interleave.Tensor"}, {repeats, 0, /*counts_samples=*/true});
}

} // namespace torchlayers
