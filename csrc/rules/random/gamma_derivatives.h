// The derivatives of _standard_gamma_grad, which is itself the derivative of a gamma random number
// with respect to the shape parameter.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// With respect to the shape at a fixed number, and to the number at a fixed shape. `slope` is the
// value of _standard_gamma_grad.
at::Tensor gamma_slope_by_shape(
    const at::Tensor& alpha, const at::Tensor& number, const at::Tensor& slope);
at::Tensor gamma_slope_by_number(
    const at::Tensor& alpha, const at::Tensor& number, const at::Tensor& slope);

} // namespace torchlayers
