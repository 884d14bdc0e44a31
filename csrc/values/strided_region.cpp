#include "values/strided_region.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/aten_functions.h"
#include "core/stack.h"
#include "values/batched.h"
#include "values/wrapper.h"

namespace torchlayers {

using at::Tensor;

namespace {

bool is_contiguous(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expected) {
      return false;
    }
    expected *= sizes[i];
  }
  return true;
}

std::vector<c10::SymInt> with_first(const c10::SymInt& first, at::IntArrayRef rest) {
  std::vector<c10::SymInt> all{first};
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

} // namespace

c10::StorageImpl* memory_of(const Tensor& tensor) {
  const Tensor& holder = holder_of(tensor);
  return holder.has_storage()
             ? holder.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()
             : nullptr;
}

StridedRegion place_of(const Tensor& tensor) {
  return {
      memory_of(tensor),
      tensor.storage_offset(),
      at::DimVector(tensor.sizes()),
      at::DimVector(tensor.strides())};
}

bool has_places(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return impl->layout() == at::kStrided && !impl->has_symbolic_sizes_strides() &&
         !holder_of(tensor).is_nested();
}

bool is_at(const Tensor& tensor, const StridedRegion& place) {
  return tensor.storage_offset() == place.offset &&
         tensor.sizes() == at::IntArrayRef(place.sizes) &&
         tensor.strides() == at::IntArrayRef(place.strides) && memory_of(tensor) == place.memory;
}

int64_t reach(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t reach = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    reach += std::max<int64_t>(sizes[i] - 1, 0) * strides[i];
  }
  return reach;
}

bool shows_own_elements(
    const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  const int64_t start = tensor.storage_offset();
  return offset >= start &&
         offset + reach(sizes, strides) <= start + reach(tensor.sizes(), tensor.strides()) &&
         tensor.is_non_overlapping_and_dense();
}

Extent extent_of(const Tensor& tensor) {
  Extent extent{tensor.storage_offset(), 0, 0};
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1) {
      extent.unit = std::gcd(extent.unit, tensor.stride(dim));
    }
  }
  extent.unit = std::max<int64_t>(extent.unit, 1);
  extent.count = reach(tensor.sizes(), tensor.strides()) / extent.unit + 1;
  return extent;
}

StridedRegion place_in(const Extent& moved, c10::StorageImpl* to, const StridedRegion& place) {
  StridedRegion moved_to{
      to, (place.offset - moved.origin) / moved.unit, place.sizes, place.strides};
  for (int64_t& stride : moved_to.strides) {
    stride /= moved.unit;
  }
  return moved_to;
}

Tensor as_dtype(const Tensor& elements, at::ScalarType dtype) {
  const auto own = elements.scalar_type();
  if (own == dtype) {
    return elements;
  }
  if (at::isComplexType(own) && dtype == at::toRealValueType(own)) {
    return at::view_as_real(elements).flatten(1);
  }
  if (at::isComplexType(dtype) && own == at::toRealValueType(dtype)) {
    return at::view_as_complex(elements.unflatten(1, {-1, 2}));
  }
  return elements.view(dtype);
}

Tensor at_places(const Tensor& elements, const StridedRegion& place) {
  const c10::SymInt batch = elements.sym_size(0);
  const auto count = elements.sym_size(1).as_int_unchecked();
  const auto sizes = with_first(batch, place.sizes);
  const auto strides = with_first(count, place.strides);
  if (c10::multiply_integers(place.sizes) == 0) {
    // There is nothing to share. If this were a view, its gradient could come from torch's formula
    // for as_strided, whose zeros for no elements are not batched under torch.func's vmap.
    return elements.new_empty_strided_symint(sizes, strides);
  }
  if (place.offset == 0 && c10::multiply_integers(place.sizes) == count &&
      is_contiguous(place.sizes, place.strides)) {
    return elements.view_symint(sizes);
  }
  return elements.as_strided_symint(sizes, strides, place.offset);
}

Tensor stretched(const Tensor& tensor, at::DimVector sizes, at::DimVector strides, int64_t offset) {
  const auto* impl = at::functorch::maybeGetBatchedImpl(tensor);
  if (impl == nullptr) {
    // A view has a history for its own elements only; its base has one for all.
    const Tensor base = tensor.is_view() ? Tensor(tensor._base()) : tensor;
    const bool has_places = base.scalar_type() == tensor.scalar_type();
    return (has_places ? base : tensor).as_strided(sizes, strides, offset);
  }
  sizes.insert(sizes.begin(), impl->value().size(impl->bdim()));
  strides.insert(strides.begin(), impl->value().stride(impl->bdim()));
  Tensor value = stretched(impl->value(), std::move(sizes), std::move(strides), offset);
  const Layer* lower = layer_at(impl->level());
  return lower != nullptr ? batched(std::move(value), /*dim=*/0, *lower)
                          : at::functorch::makeBatched(std::move(value), 0, impl->level());
}

} // namespace torchlayers
