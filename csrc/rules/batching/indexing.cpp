// Indexing, gathering and scattering.
#include <ATen/ATen.h>

#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// op(x, dim, index, source, ...), of tensors of one rank, each with a batch or given one.
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

// index.Tensor(x, indices). Indices that stand side by side leave the batch where it is; parted
// ones would bring what they pick to the front of it.
bool index(BatchedCall& call, size_t) {
  const auto given = call[1].toListRef();
  std::vector<Tensor> indices;
  int64_t runs = 0;
  bool was_index = false;
  bool any_batched = false;
  for (const c10::IValue& each : given) {
    const bool is_index = each.isTensor() && each.toTensor().defined();
    runs += is_index && !was_index ? 1 : 0;
    was_index = is_index;
    indices.push_back(is_index ? each.toTensor() : Tensor());
    any_batched = any_batched || (is_index && call.is_batched(indices.back()));
  }
  if (runs != 1) {
    return false;
  }
  const auto as_list = [](const std::vector<Tensor>& tensors) {
    c10::List<std::optional<Tensor>> list;
    for (const Tensor& tensor : tensors) {
      list.push_back(tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt);
    }
    return list;
  };
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

// embedding(weight, indices, padding, scale by frequency, sparse): what is after the indices is a
// gradient's matter.
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
    at::DimVector sizes(indices.sizes());
    sizes.insert(sizes.begin(), weight.size(0));
    sizes.push_back(weight.size(2));
    return at::index_select(weight, 1, indices.reshape({-1})).view(sizes);
  });
}

} // namespace

void add_batched_indexing(BatchingTable& rules) {
  rules.add({"index_select"}, {at_dim, 1}); // one index for all samples
  rules.add({"gather", "scatter.src", "scatter.value", "scatter_add"}, {by_elements});
  rules.add({"index.Tensor"}, {index});
  rules.add({"embedding"}, {embedding});
}

} // namespace torchlayers
