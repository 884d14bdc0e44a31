// Sums and products of coefficients, an undefined tensor being zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchlayers {

// total + factor * a * b
at::Tensor with_product(
    const at::Tensor& total, const at::Tensor& a, const at::Tensor& b, double factor = 1);
at::Tensor scaled(const at::Tensor& tensor, double factor);
at::Tensor added(const at::Tensor& a, const at::Tensor& b);

// The coefficient, of the value's size and dtype.
at::Tensor fitted(const at::Tensor& coefficient, const at::Tensor& value);

// The coefficient k of b y + c y^2; with b = 0 of y^2 / 2, with c = 0 of y.
at::Tensor slope_coefficient(const std::vector<at::Tensor>& y, size_t k, double b, double c);

} // namespace torchlayers
