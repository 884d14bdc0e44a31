// Copies elements without calling an operator.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// Some of a tensor's elements; the offset counts from its first.
struct Part {
  int64_t offset;
  at::DimVector sizes;
  at::DimVector strides;
};
Part all_of(const at::Tensor& tensor);

// Copies the elements of `from`, broadcast, to a part of `to`, if they are few, both tensors are
// plain and in CPU memory, and no mode or trace would see the operator: dispatching it takes longer
// than copying. Otherwise does nothing and returns false. For the lowest layer. The first
// `in_front` dimensions of `from` correspond to the part's first ones; the others are broadcast
// from the last dimension.
bool copy_at_once(
    const at::Tensor& to, const Part& part, const at::Tensor& from, size_t in_front = 0);

// Throws if an in-place operator may not write a result of this dtype to the tensor.
void check_can_copy(const at::Tensor& to, const at::Tensor& from);

} // namespace torchlayers
