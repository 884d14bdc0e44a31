#include "layers/series_arithmetic.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "core/aten_functions.h"
#include "core/entry.h"
#include "layers/jvp.h"
#include "layers/transforms.h"
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

double factorial(size_t n) {
  return n < 2 ? 1 : static_cast<double>(n) * factorial(n - 1);
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

namespace {

// make_dual gives a tangent the primal's layout in memory, and elements of an expanded primal share
// theirs.
Tensor without_overlap(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor
                                               : tensor.clone(at::MemoryFormat::Contiguous);
}

} // namespace

std::vector<Tensor> derivatives_along(
    c10::function_ref<Tensor(const std::vector<Tensor>&)> function,
    const std::vector<Curve>& curves,
    size_t order) {
  if (order == 0) {
    std::vector<Tensor> points;
    for (const Curve& curve : curves) {
      points.push_back(curve[0]);
    }
    return {function(points)};
  }
  const auto entry = std::make_shared<Entry>(std::make_shared<JvpLayer>());
  const int64_t level = entry->enter();
  std::vector<Tensor> result;
  try {
    std::vector<Curve> duals;
    for (const Curve& curve : curves) {
      Curve dual;
      for (size_t k = 0; k < std::max<size_t>(1, std::min(curve.size() - 1, order)); ++k) {
        const bool moves = k + 1 < curve.size() && curve[k + 1].defined();
        dual.push_back(
            moves
                ? make_dual(
                      curve[k].defined() ? without_overlap(curve[k]) : at::zeros_like(curve[k + 1]),
                      curve[k + 1])
                : curve[k]);
      }
      duals.push_back(std::move(dual));
    }
    std::vector<Tensor> inner = derivatives_along(function, duals, order - 1);
    Tensor last;
    for (Tensor& derivative : inner) {
      Tensor primal;
      if (derivative.defined()) {
        std::tie(primal, last) = split_dual(derivative, level);
      } else {
        last = Tensor();
      }
      derivative = Tensor();
      result.push_back(std::move(primal));
    }
    result.push_back(std::move(last));
  } catch (...) {
    entry->leave();
    throw;
  }
  entry->leave();
  return result;
}

} // namespace torchlayers
