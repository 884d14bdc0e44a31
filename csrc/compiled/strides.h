// The strides that a captured graph expects of a tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers::compiled {

// Whether the tensor has these strides, except in dimensions of size 1, where they don't matter.
bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides);

// A dense copy whose dimensions are ordered in memory as the strides say.
at::Tensor with_strides(const at::Tensor& tensor, at::IntArrayRef strides);

} // namespace torchlayers::compiled
