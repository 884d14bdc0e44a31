// Where a tensor's elements are in memory, as a recording knows it.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers::compiled {

// Whether each element is where these strides say. Those of dimensions of size 1 don't matter.
bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides);

// A copy, dense, whose dimensions lie in memory in the order that the strides say.
at::Tensor with_strides(const at::Tensor& tensor, at::IntArrayRef strides);

} // namespace torchlayers::compiled
