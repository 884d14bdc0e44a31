// Sums and products of coefficients, an undefined tensor being zero, and derivatives along curves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <vector>

namespace torchlayers {

// total + factor * a * b
at::Tensor with_product(
    const at::Tensor& total, const at::Tensor& a, const at::Tensor& b, double factor = 1);
at::Tensor scaled(const at::Tensor& tensor, double factor);
at::Tensor added(const at::Tensor& a, const at::Tensor& b);
double factorial(size_t n);

// The coefficient, of the value's size and dtype.
at::Tensor fitted(const at::Tensor& coefficient, const at::Tensor& value);

// The coefficient k of b y + c y^2; with b = 0 of y^2 / 2, with c = 0 of y.
at::Tensor slope_coefficient(const std::vector<at::Tensor>& y, size_t k, double b, double c);

// The derivatives 0, 1, … of a function of t.
using Curve = std::vector<at::Tensor>;

// The derivatives 0 to `order` of a function along curves, by jvps of jvps. The function gets a
// point of each curve.
std::vector<at::Tensor> derivatives_along(
    c10::function_ref<at::Tensor(const std::vector<at::Tensor>&)> function,
    const std::vector<Curve>& curves,
    size_t order);

} // namespace torchlayers
