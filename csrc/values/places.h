// Where a tensor's elements are in memory, which tells what shares memory with what.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// The storage of the tensor in the middle of all wrappers; null where it has none.
c10::StorageImpl* memory_of(const at::Tensor& tensor);

// A tensor's elements as places in memory. Of a batched tensor, those of one sample.
struct Place {
  c10::StorageImpl* memory;
  int64_t offset;
  at::DimVector sizes;
  at::DimVector strides;
};

// Whether it has any: its layout is strided, and its sizes are numbers.
bool has_places(const at::Tensor& tensor);
Place place_of(const at::Tensor& tensor);
bool is_at(const at::Tensor& tensor, const Place& place);

// Which places of a memory count: every `unit`th from `origin` on. A sample whose batch is its last
// dimension has its elements far from each other.
struct Extent {
  int64_t origin = 0;
  int64_t unit = 1;
  int64_t count = 0; // all there are
};
Extent extent_of(const at::Tensor& tensor);

// The same place where what counts of its memory has moved to another.
Place place_in(const Extent& moved, c10::StorageImpl* to, const Place& place);

// Of elements (batch, count): those at the places, with the batch in front.
at::Tensor at_places(const at::Tensor& elements, const Place& place);

// The tensor with other sizes and strides, which may leave its own elements but not its memory;
// torch's batching rule of as_strided lets a sample's not.
at::Tensor stretched(
    const at::Tensor& tensor, at::DimVector sizes, at::DimVector strides, int64_t offset);

// The elements (batch, count) seen as elements of this dtype.
at::Tensor as_dtype(const at::Tensor& elements, at::ScalarType dtype);

} // namespace torchlayers
