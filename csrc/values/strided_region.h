// Where a tensor's elements are in memory, which tells which tensors share memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// The storage of the tensor inside all wrappers; null if it has none.
c10::StorageImpl* memory_of(const at::Tensor& tensor);

// The memory locations of a tensor's elements. For a batched tensor, those of one sample.
struct StridedRegion {
  c10::StorageImpl* memory;
  int64_t offset;
  at::DimVector sizes;
  at::DimVector strides;
};

// Whether the tensor has such locations: its layout is strided, and its sizes are not symbolic.
bool has_places(const at::Tensor& tensor);
StridedRegion place_of(const at::Tensor& tensor);
bool is_at(const at::Tensor& tensor, const StridedRegion& place);

// The distance in memory from the first element to the last.
int64_t reach(at::IntArrayRef sizes, at::IntArrayRef strides);

// Whether a view of a tensor's memory shows elements of the tensor alone: its elements have to be
// next to each other for this to be seen.
bool shows_own_elements(
    const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset);

// Which locations of a memory count: every `unit`th from `origin` on. The elements of a sample are
// far apart if the batch is the last dimension.
struct Extent {
  int64_t origin = 0;
  int64_t unit = 1;
  int64_t count = 0; // 0: all there are
};
Extent extent_of(const at::Tensor& tensor);

// The same place after the extent that contains it has moved to another memory.
StridedRegion place_in(const Extent& moved, c10::StorageImpl* to, const StridedRegion& place);

// The elements at a place, from `elements` of shape (batch, count), with the batch in front.
at::Tensor at_places(const at::Tensor& elements, const StridedRegion& place);

// The tensor with other sizes and strides, which may exceed its own elements but not its memory;
// as_strided under vmap does not let a sample exceed its elements.
at::Tensor stretched(
    const at::Tensor& tensor, at::DimVector sizes, at::DimVector strides, int64_t offset);

// The elements (batch, count) viewed as elements of this dtype.
at::Tensor as_dtype(const at::Tensor& elements, at::ScalarType dtype);

} // namespace torchlayers
