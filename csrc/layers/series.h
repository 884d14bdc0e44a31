// Tensors that carry the coefficients of a power series: those of jet's layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/Interpreter.h>

#include <vector>

namespace torchlayers {

// The Taylor coefficients 1, 2, … of a value; undefined for those that are zero.
using Coefficients = std::vector<at::Tensor>;

// A wrapper of the interpreter's level around the value, with these coefficients. The value has
// strides.
at::Tensor wrapper_with_series(
    const at::Tensor& value, const at::functorch::Interpreter& interpreter, Coefficients series);

// The coefficients in a wrapper; null if it has none. They live as long as the wrapper.
const Coefficients* series_of(const at::Tensor& tensor);

} // namespace torchlayers
