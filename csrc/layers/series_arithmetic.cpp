#include "layers/series_arithmetic.h"

#include "core/aten_functions.h"
#include "rules/rule.h"
#include "rules/small_tensors/scalar_fast_path.h"

namespace torchlayers {

using at::Tensor;

Tensor with_product(const Tensor& total, const Tensor& a, const Tensor& b, double factor) {
  if (!a.defined() || !b.defined()) {
    return total;
  }
  if (!total.defined()) {
    const Tensor product = in_one_pass([](const auto& a, const auto& b) { return a * b; }, a, b);
    return factor == 1 ? product : product * factor;
  }
  OnePass pass;
  if (pass.read(0, total) && pass.read(1, a) && pass.read(2, b)) {
    Tensor result = pass.compute([factor](const auto& element) {
      return element.at(0) +
             static_cast<decltype(element.at(0))>(factor) * (element.at(1) * element.at(2));
    });
    if (result.defined()) {
      return result;
    }
  }
  return at::addcmul(total, a, b, factor);
}

Tensor scaled(const Tensor& tensor, double factor) {
  if (!tensor.defined() || factor == 1) {
    return tensor;
  }
  OnePass pass;
  Tensor result;
  if (pass.read(0, tensor)) {
    result = pass.compute([factor](const auto& element) {
      return static_cast<decltype(element.at(0))>(factor) * element.at(0);
    });
  }
  return result.defined() ? result : tensor * factor;
}

Tensor added(const Tensor& a, const Tensor& b) {
  return sum_of({a, b});
}

Tensor fitted(const Tensor& coefficient, const Tensor& value) {
  if (!coefficient.defined()) {
    return coefficient;
  }
  const Tensor converted = coefficient.scalar_type() == value.scalar_type()
                               ? coefficient
                               : coefficient.to(value.scalar_type());
  return converted.sym_sizes().equals(value.sym_sizes())
             ? converted
             : converted.expand_symint(value.sym_sizes());
}

Tensor slope_coefficient(const std::vector<Tensor>& y, size_t k, double b, double c) {
  if (c == 0) {
    return y[k];
  }
  Tensor half; // of y^2
  for (size_t i = 0; i < (k + 1) / 2; ++i) {
    half = with_product(half, y[i], y[k - i]);
  }
  half = k % 2 == 0 ? with_product(half, y[k / 2], y[k / 2], 0.5) : half;
  return b == 0 ? half : added(scaled(y[k], b), scaled(half, 2 * c));
}

} // namespace torchlayers
