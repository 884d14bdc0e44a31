// Let F be the distribution function and f its density: a number x that keeps its F as the shape a
// changes has the slope s = -F_a / f (implicit reparameterisation: Figurnov, Mohamed, Mnih. NeurIPS
// 2018). With (log f)_a = log x - digamma(a) and (log f)_x = (a - 1) / x - 1, its derivatives are
//
//   s_x = -(log f)_a - s (log f)_x        s_a = -F_aa / f - s (log f)_a
//
// F_aa is the integral of f_aa = f ((log f)_a^2 - trigamma(a)) up to x, or, since F_aa is zero at
// both ends, minus the integral from x on; we take the side on which f decreases. There we
// substitute x exp(-v) or x exp(v) for the variable, and 64 points of Gauss-Legendre quadrature are
// nearly exact.
#include "rules/random/gamma_derivatives.h"

#include <array>
#include <cmath>

#include "core/aten_functions.h"

namespace torchlayers {
namespace {

using at::Tensor;

constexpr int kPoints = 64;

// Gauss-Legendre quadrature on [0, 1].
struct Quadrature {
  std::array<double, kPoints> points;
  std::array<double, kPoints> weights;

  Quadrature() {
    for (int i = 0; i < kPoints; ++i) {
      double x = std::cos(3.14159265358979323846 * (i + 0.75) / (kPoints + 0.5));
      double slope = 0;
      for (int step = 0; step < 10; ++step) { // Newton's method on the Legendre polynomial
        double before = 1;
        double value = x;
        for (int n = 2; n <= kPoints; ++n) {
          const double next = ((2 * n - 1) * x * value - (n - 1) * before) / n;
          before = value;
          value = next;
        }
        slope = kPoints * (x * value - before) / (x * x - 1);
        x -= value / slope;
      }
      points[i] = (1 - x) / 2;
      weights[i] = 1 / ((1 - x * x) * slope * slope);
    }
  }
};

// A tensor that shares the memory of the numbers, which are never freed: no layer wraps a tensor
// that is created like this.
Tensor constants(std::array<double, kPoints>& numbers, const Tensor& like) {
  return at::from_blob(numbers.data(), {kPoints}, at::kDouble).to(like.device());
}

// F_aa / f at x, in doubles.
Tensor curvature(const Tensor& a, const Tensor& x) {
  static Quadrature rule;
  constexpr double kFar = 40; // the integral is cut off where the integrand reaches exp(-kFar)
  const Tensor is_below = x <= a;
  const Tensor of_a = a.detach().reciprocal() * kFar;
  const Tensor of_x = x.detach().reciprocal() * (2 * kFar);
  // Bounds for the place where exp(-kFar) is reached: a (v - 1 + exp(-v)) >= a v^2 / (2 + v), and x
  // (exp(v) - 1 - v) is at least x v^2 / 2, and x (exp(v) - 1) / 2 where that is 5/4 x or more.
  const Tensor end = at::where(
      is_below,
      (of_a + (of_a * of_a + of_a * 8).sqrt()) / 2,
      at::where(of_x > 2.5, of_x.log1p(), of_x.sqrt()));
  const Tensor v = end.unsqueeze(-1) * constants(rule.points, x);
  const Tensor weights = end.unsqueeze(-1) * constants(rule.weights, x);
  const Tensor shape = a.unsqueeze(-1);
  const Tensor number = x.unsqueeze(-1);
  const Tensor way = at::where(is_below, -1.0, 1.0).to(at::kDouble).unsqueeze(-1) * v;
  const Tensor density = number * (shape * way - number * way.expm1()).exp();
  const Tensor by_shape = number.log() + way - shape.digamma();
  const Tensor integrand = density * (by_shape * by_shape - shape.polygamma(1));
  const Tensor whole = (integrand * weights).sum(-1);
  return at::where(is_below, whole, -whole);
}

} // namespace

Tensor gamma_slope_by_shape(const Tensor& alpha, const Tensor& number, const Tensor& slope) {
  const Tensor a = alpha.to(at::kDouble);
  const Tensor x = number.to(at::kDouble);
  const Tensor by_shape = -curvature(a, x) - slope * (x.log() - a.digamma());
  return by_shape.to(alpha.scalar_type());
}

Tensor gamma_slope_by_number(const Tensor& alpha, const Tensor& number, const Tensor& slope) {
  return alpha.digamma() - number.log() - slope * ((alpha - 1) / number - 1);
}

} // namespace torchlayers
