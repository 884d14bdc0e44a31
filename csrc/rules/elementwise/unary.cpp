// Elementwise functions of one argument.
#include <cfloat>
#include <cmath>

#include "rules/families.h"
#include "rules/reductions/dims.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

const double kSqrtPi = std::sqrt(M_PI);

// i1(x) / x is 1/2 where x is negligible compared with one, but the quotient of denormals is
// inaccurate.
Tensor is_tiny(const Tensor& x) {
  TORCH_CHECK(!is_symbolic(x), "the precision of a graph's tensor is not known");
  return x.abs() <= (x.scalar_type() == at::kDouble ? DBL_EPSILON : FLT_EPSILON);
}

Tensor i1_slope(const Tensor& x, const Tensor& y) {
  const Tensor tiny = is_tiny(x);
  return at::where(tiny, 0.5, at::i0(x) - y / x.masked_fill(tiny, 1));
}

Tensor i1e_slope(const Tensor& x, const Tensor& y) {
  const Tensor tiny = is_tiny(x);
  const Tensor inverse = x.masked_fill(tiny, 1).reciprocal();
  return at::where(tiny, 0.5, at::special_i0e(x) - y * (x.sgn() + inverse));
}

// (cos(pi x) - sinc(x)) / x; near zero, where that is 0 / 0, the first terms of its series.
Tensor sinc_slope(const Tensor& x) {
  constexpr double kNear = 0.03; // the terms left out are beyond double precision
  const Tensor is_near = x.abs() < kNear;
  const Tensor inside = at::where(is_near, x * M_PI, 0);
  const Tensor square = inside * inside;
  const Tensor series =
      inside * M_PI * (-1.0 / 3 + square * (1.0 / 30 + square * (-1.0 / 840 + square / 45360)));
  const Tensor quotient = ((x * M_PI).cos() - x.sinc()) / x.masked_fill(is_near, 1);
  return at::where(is_near, series, quotient);
}

// The normal density divided by the distribution function. If it is differentiated again, positive
// x use another formula, because erfcx overflows for them.
Tensor log_ndtr_slope(const Tensor& x, const Tensor& y) {
  if (!is_differentiated_below({x})) {
    return std::sqrt(2 / M_PI) / at::special_erfcx(x * -M_SQRT1_2);
  }
  const Tensor negative = std::sqrt(2 / M_PI) / at::special_erfcx(x.clamp_max(0) * -M_SQRT1_2);
  const Tensor above = x.clamp_min(0);
  const Tensor positive = (above * above * -0.5 - y.clamp_min(-M_LN2)).exp() / std::sqrt(2 * M_PI);
  return at::where(x > 0, positive, negative);
}

// x / |x|. The absolute value of a complex number is a norm, without a second derivative at zero.
Tensor slope_of_abs(const Tensor& x) {
  return x.is_complex() && is_differentiated_below({x}) ? over_norm(x, x.abs()) : x.sgn();
}

Tensor sgn_tangent(const Tensor& t, const Tensor& x, const Tensor& y) {
  if (!x.is_complex()) {
    return {};
  }
  const Tensor size = x.abs();
  return (t - y * at::real(y.conj() * t)) / nonzero(size, size, is_differentiated_below({t, x}));
}

// The angle of a complex number changes with the part of the tangent perpendicular to it.
Tensor angle_tangent(const Tensor& t, const Tensor& x) {
  if (!x.is_complex()) {
    return {};
  }
  const Tensor square = x.abs().square();
  return at::imag(t * x.conj()) / nonzero(square, square, is_differentiated_below({t, x}));
}

Tensor angle_gradient(const Tensor& g, const Tensor& x) {
  if (!x.is_complex()) {
    return {};
  }
  const Tensor square = x.abs().square();
  const Tensor across = x * at::Scalar(c10::complex<double>(0, 1));
  return across * (g / nonzero(square, square, is_differentiated_below({g, x})));
}

// The derivative of lgamma(x) + lgamma(x - 1/2) + …, p terms, and a constant.
Tensor multivariate_digamma(const Tensor& x, int64_t p) {
  const Tensor steps = at::arange(0, 0.5 * static_cast<double>(p), 0.5, x.options());
  return (x.unsqueeze(-1) - steps).digamma().sum(-1);
}

Tensor copied_back(const Tensor& g, at::Device device, at::ScalarType dtype) {
  const bool was_real = g.is_complex() && !c10::isComplexType(dtype);
  return (was_real ? at::real(g) : g).to(device, dtype);
}

// torch has a special kernel for this exponent.
Tensor cube(const Tensor& x) {
  return x.is_complex() ? x * x * x : x.pow(3);
}

} // namespace

void add_unary(Table& rules) {
  rules["abs"]
      .jvp(ELEMENTWISE_TANGENT(0, real_product(slope_of_abs(x), t)))
      .vjp(VJP(0, g * slope_of_abs(x)))
      .piecewise_linear();
  ELEMENTWISE("acos", -t * rsqrt(1 - x * x));
  ELEMENTWISE("acosh", t * rsqrt(x * x - 1));
  ELEMENTWISE("asin", t * rsqrt(1 - x * x));
  ELEMENTWISE("asinh", t * rsqrt(x * x + 1));
  ELEMENTWISE("atan", t / (x * x + 1));
  ELEMENTWISE("atanh", t / (1 - x * x));
  ELEMENTWISE("cos", -t * sin(x));
  ELEMENTWISE("cosh", t * sinh(x));
  ELEMENTWISE("sin", t * cos(x));
  ELEMENTWISE("sinh", t * cosh(x));
  ELEMENTWISE("tan", t * (y * y + 1)).has_slope(1, 0, 1);
  ELEMENTWISE("exp", t * y).has_slope(0, 1, 0);
  ELEMENTWISE("exp2", t * y * M_LN2).has_slope(0, M_LN2, 0);
  ELEMENTWISE("expm1", t * (y + 1)).has_slope(1, 1, 0);
  ELEMENTWISE("log", t / x);
  ELEMENTWISE("log10", t / (x * M_LN10));
  ELEMENTWISE("log1p", t / (x + 1));
  ELEMENTWISE("log2", t / (x * M_LN2));
  ELEMENTWISE("sqrt", t / (2 * y));
  ELEMENTWISE("rsqrt", -0.5 * t * cube(y));
  ELEMENTWISE("reciprocal", -t * y * y).has_slope(0, 0, -1);
  rules["sgn"].terms(CONJUGATE_TERM(0, sgn_tangent(t, x, y)));
  rules["angle"].jvp(ELEMENTWISE_TANGENT(0, angle_tangent(t, x))).vjp(VJP(0, angle_gradient(g, x)));
  ELEMENTWISE("frac", t).piecewise_linear();
  rules["frexp.Tensor"]
      .jvp(ELEMENTWISE_TANGENT(0, t / c.result(1).exp2()))
      .vjp(VJP(0, g / c.result(1).exp2()))
      .piecewise_linear();
  ELEMENTWISE("nan_to_num", at::where(x - x == 0, t, 0)).piecewise_linear(); // where x is finite

  ELEMENTWISE("erf", t * (2 / kSqrtPi) * exp(-x * x));
  ELEMENTWISE("erfc", t * (-2 / kSqrtPi) * exp(-x * x));
  ELEMENTWISE("erfinv", t * (kSqrtPi / 2) * x.erfinv().square().exp());
  // Only on tensors: how far the terms cancel depends on how the constant is rounded.
  ELEMENTWISE("special_erfcx", t * at::sub(2 * x * y, 2 / kSqrtPi));
  ELEMENTWISE("special_entr", -t * (x.log() + 1));
  ELEMENTWISE("special_ndtri", t * std::sqrt(2 * M_PI) * (y * y / 2).exp());
  ELEMENTWISE("special_log_ndtr", t * log_ndtr_slope(x, y));
  ELEMENTWISE("lgamma", t * x.digamma());
  ELEMENTWISE("digamma", t * at::polygamma(1, x));
  rules["polygamma"].terms(TERM(1, t * at::polygamma(c.integer(0) + 1, c[1])));
  ELEMENTWISE("mvlgamma", t * multivariate_digamma(x, c.integer(1)));
  ELEMENTWISE("i0", t * at::special_i1(x));
  ELEMENTWISE("special_i0e", t * (at::special_i1e(x) - x.sgn() * y));
  ELEMENTWISE("special_i1", t * i1_slope(x, y));
  ELEMENTWISE("special_i1e", t * i1e_slope(x, y));
  ELEMENTWISE("sinc", t * sinc_slope(x));

  ELEMENTWISE("neg", -t).linear();
  LINEAR("deg2rad", at::deg2rad(g));
  LINEAR("rad2deg", at::rad2deg(g));
  LINEAR("_conj", g.conj());
  LINEAR("conj_physical", at::conj_physical(g));
  LINEAR("_conj_physical", at::conj_physical(g));
  LINEAR("clone", g).gathers();
  LINEAR("_to_copy", copied_back(g, c.device_of(0), c.dtype_of(0))).gathers();
}

} // namespace torchlayers
