// Operators whose strides and offsets refer to the memory that a sample is in.

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/aten_functions.h"
#include "core/errors.h"
#include "rules/batching/families.h"
#include "values/strided_region.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Which elements of a sample's memory an operator views.
struct View {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset;

  int64_t last() const {
    return offset + reach(sizes, strides);
  }
  std::vector<int64_t> batched_sizes(const Tensor& batch) const {
    return with_first(batch.size(0), sizes);
  }
  std::vector<int64_t> batched_strides(const Tensor& batch) const {
    return with_first(batch.stride(0), strides);
  }

 private:
  static std::vector<int64_t> with_first(int64_t first, std::vector<int64_t> rest) {
    rest.insert(rest.begin(), first);
    return rest;
  }
};

// The view by op(x, ..., sizes, strides, offset); nullopt where torch's rule has to raise an error,
// or numbers are symbols.
std::optional<View> view_of(const BatchedCall& call, size_t sizes) {
  const c10::IValue& strides = call[sizes + 1];
  const c10::IValue& offset = call[sizes + 2];
  if (!call[sizes].isIntList() || !strides.isIntList() || !(offset.isNone() || offset.isInt()) ||
      call[sizes].toIntVector().size() != strides.toIntVector().size() ||
      !has_places(call.tensor(0))) {
    return std::nullopt;
  }
  return View{
      call[sizes].toIntVector(),
      strides.toIntVector(),
      offset.isNone() ? call.tensor(0).storage_offset() : offset.toInt()};
}

// All locations in memory, once each and in order.
std::vector<int64_t> places(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  std::vector<int64_t> all{offset};
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<int64_t> more;
    for (const int64_t place : all) {
      for (int64_t at = 0; at < sizes[i]; ++at) {
        more.push_back(place + at * strides[i]);
      }
    }
    all = std::move(more);
  }
  std::ranges::sort(all);
  const auto repeated = std::ranges::unique(all);
  all.erase(repeated.begin(), repeated.end());
  return all;
}

// Whether a view of one sample shows no elements of another. The batch dimension's stride separates
// those that are equal in all larger strides, so what the view's strides leave of these must not
// add up to it.
bool is_of_one_sample(const View& view, const Tensor& sample) {
  const auto* batched = at::functorch::maybeGetBatchedImpl(sample);
  const int64_t apart = batched->value().stride(batched->bdim());
  if (apart == 0 || batched->value().size(batched->bdim()) < 2 ||
      shows_own_elements(sample, view.sizes, view.strides, view.offset)) {
    return true;
  }
  const int64_t start = sample.storage_offset();
  int64_t above = 0; // the common divisor of the larger strides
  for (int64_t i = 0; i < sample.dim(); ++i) {
    if (sample.size(i) > 1 && sample.stride(i) > apart) {
      above = std::gcd(above, sample.stride(i));
    }
  }
  int64_t left = 0;
  if (above == 0) {
    const int64_t last = start + reach(sample.sizes(), sample.strides());
    left = std::max(last, view.last()) - std::min(start, view.offset);
  } else {
    left = ((view.offset - start) % above + above) % above;
    for (size_t i = 0; i < view.sizes.size(); ++i) {
      left += (view.sizes[i] - 1) * (view.strides[i] % above);
    }
  }
  // Samples that share memory, as windows do, are not separated: there every element is looked for.
  return left < apart || std::ranges::includes(
                             places(sample.sizes(), sample.strides(), start),
                             places(view.sizes, view.strides, view.offset));
}

void check_view(const BatchedCall& call, const View& view) {
  const Tensor& sample = call.tensor(0);
  if (std::ranges::find(view.sizes, 0) != view.sizes.end()) {
    return;
  }
  if (view.last() > sample.storage_offset() + reach(sample.sizes(), sample.strides())) {
    raise_as(
        ErrorClass::BatchedOperator,
        "{} can't run {} with sizes {}, strides {} and offset {}: the view exceeds the sample, of "
        "sizes {} and strides {}.",
        call.layer_name(),
        call.op().name(),
        at::IntArrayRef(view.sizes),
        at::IntArrayRef(view.strides),
        view.offset,
        sample.sizes(),
        sample.strides());
  }
  if (!is_of_one_sample(view, sample)) {
    raise_as(
        ErrorClass::BatchedOperator,
        "{} can't run {} with sizes {}, strides {} and offset {}: the samples are interleaved "
        "in memory, and the view would show elements of several. Compute the strides from "
        "x.stride(), which is {}, or view x.contiguous().",
        call.layer_name(),
        call.op().name(),
        at::IntArrayRef(view.sizes),
        at::IntArrayRef(view.strides),
        view.offset,
        sample.strides());
  }
}

// The view of a sample by op(x, sizes, strides, offset), checked; nullopt as for view_of.
std::optional<View> view_of_sample(const BatchedCall& call) {
  auto view = call.is_batched(0) ? view_of(call, 1) : std::nullopt;
  if (view) {
    check_view(call, *view);
  }
  return view;
}

// as_strided(x, sizes, strides, offset)
bool strided(BatchedCall& call, size_t) {
  const auto view = view_of_sample(call);
  if (!view) {
    return false;
  }
  return call.give([&] {
    const Tensor x = call.value(0);
    return call.call({x, view->batched_sizes(x), view->batched_strides(x), view->offset});
  });
}

// as_strided_(x, sizes, strides, offset)
bool strided_in_place(BatchedCall& call, size_t) {
  const auto view = view_of_sample(call);
  if (!view) {
    return false;
  }
  return call.write([&] {
    const Tensor x = call.value(0);
    auto* batched = at::functorch::maybeGetBatchedImpl(call.tensor(0));
    batched->value().as_strided_(view->batched_sizes(x), view->batched_strides(x), view->offset);
    batched->unsafe_set_bdim(0);
    batched->refreshTensorMetadata();
  });
}

// as_strided_scatter(x, part, sizes, strides, offset). A write outside the sample must not hit
// another one.
bool into_strided(BatchedCall& call, size_t) {
  const auto view = call.is_batched(0) || call.is_batched(1) ? view_of(call, 2) : std::nullopt;
  if (!view) {
    return false;
  }
  return call.give([&] {
    Tensor x = call.expanded(0);
    const int64_t start = x.storage_offset();
    const int64_t last =
        std::max(start + reach(x.sizes().slice(1), x.strides().slice(1)), view->last());
    const int64_t span = last - std::min(start, view->offset) + 1;
    if (x.stride(0) < span) {
      std::vector<int64_t> apart = x.strides().vec();
      apart[0] = span;
      const Tensor memory = x.new_zeros({start + x.size(0) * span});
      x = memory.as_strided(x.sizes(), apart, start).copy_(x);
    }
    return call.call(
        {x, call.expanded(1), view->batched_sizes(x), view->batched_strides(x), view->offset});
  });
}

// resize(x, sizes, *, memory_format), which keeps the elements in the order of x's memory.
bool resized(BatchedCall& call, size_t) {
  if (!call.only(0) || !call[1].isIntList() || !call[2].isNone() || !has_places(call.tensor(0))) {
    return false;
  }
  const Tensor& sample = call.tensor(0);
  std::vector<int64_t> order(sample.dim());
  std::iota(order.begin(), order.end(), 1);
  std::ranges::stable_sort(
      order, std::greater(), [&](int64_t dim) { return sample.stride(dim - 1); });
  order.insert(order.begin(), 0);
  std::vector<int64_t> sizes = call[1].toIntVector();
  const int64_t count = c10::multiply_integers(sizes);
  return call.give([&] {
    const Tensor elements = call.value(0).permute(order).flatten(1);
    sizes.insert(sizes.begin(), elements.size(0));
    return at::constant_pad_nd(elements, {0, count - elements.size(1)}).view(sizes);
  });
}

} // namespace

void add_batched_strided(BatchingTable& rules) {
  rules.add({"as_strided", "as_strided_copy"}, {strided, 0, /*counts_samples=*/true});
  rules.add({"as_strided_"}, {strided_in_place, 0, /*counts_samples=*/true});
  rules.add({"as_strided_scatter"}, {into_strided, 0, /*counts_samples=*/true});
  rules.add({"resize"}, {resized, 0, /*counts_samples=*/true});
}

} // namespace torchlayers
