// How _standard_gamma_grad, which is how a gamma number moves with its shape, changes itself.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// By the shape at the same number, and by the number at the same shape, `slope` being its value.
at::Tensor gamma_slope_by_shape(
    const at::Tensor& alpha, const at::Tensor& number, const at::Tensor& slope);
at::Tensor gamma_slope_by_number(
    const at::Tensor& alpha, const at::Tensor& number, const at::Tensor& slope);

} // namespace torchlayers
