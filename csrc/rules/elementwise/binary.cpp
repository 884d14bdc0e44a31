// Elementwise functions of several arguments, with broadcasting.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "rules/elementwise/activations.h"
#include "rules/elementwise/promotion.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Scalar;
using at::Tensor;

Tensor product(const Tensor& a, const Tensor& b) {
  return in_one_pass([](const auto& a, const auto& b) { return a * b; }, a, b);
}

// The product rule, with its two terms in two operators where both are needed.
void mul(JvpCall& call) {
  call.run();
  const Tensor& a = call[0];
  const Tensor& b = call[1];
  if (!call.has_tangent(0)) {
    call.set_tangent(0, product(a, call.tangent(1)));
  } else if (!call.has_tangent(1)) {
    call.set_tangent(0, product(call.tangent(0), b));
  } else {
    call.set_tangent(
        0,
        in_one_pass(
            [](const auto& a, const auto& b, const auto& ta, const auto& tb) {
              return addcmul(ta * b, a, tb);
            },
            a,
            b,
            call.tangent(0),
            call.tangent(1)));
  }
}

// (a / b)' = (a' - b' y) / b, with one division.
void quotient(JvpCall& call) {
  call.run();
  const Tensor& b = call[1];
  if (!call.has_tangent(1)) {
    call.set_tangent(
        0, in_one_pass([](const auto& t, const auto& b) { return t / b; }, call.tangent(0), b));
  } else if (!call.has_tangent(0)) {
    call.set_tangent(
        0,
        in_one_pass(
            [](const auto& t, const auto& y, const auto& b) { return -(t * y) / b; },
            call.tangent(1),
            call.result(),
            b));
  } else {
    call.set_tangent(
        0,
        in_one_pass(
            [](const auto& ta, const auto& tb, const auto& y, const auto& b) {
              return (ta - tb * y) / b;
            },
            call.tangent(0),
            call.tangent(1),
            call.result(),
            b));
  }
}

void quotient_with_mode(JvpCall& call) {
  if (call.arg(2).isNone()) {
    quotient(call);
  } else {
    call.run(); // a step function
  }
}

template <class T>
IfNumber<T> times_slope_of_power(T t, T x, const Scalar& exponent) {
  const double order = exponent.toDouble();
  return order == 2 ? 2 * t * x : t * (static_cast<T>(order) * pow(x, order - 1));
}

Tensor times_slope_of_power(const Tensor& t, const Tensor& x, const Scalar& exponent) {
  if (exponent.equal(2)) {
    return 2 * t * x;
  }
  const Scalar one_less = exponent.isComplex()         ? Scalar(exponent.toComplexDouble() - 1.0)
                          : exponent.isFloatingPoint() ? Scalar(exponent.toDouble() - 1)
                                                       : Scalar(exponent.toLong() - 1);
  return t * (exponent * x.pow(one_less));
}

Tensor power_of_scalar(const Tensor& t, const Tensor& x, const Scalar& exponent) {
  if (exponent.equal(0.0)) {
    return {};
  }
  if (exponent.isComplex()) {
    return times_slope_of_power(t, x, exponent);
  }
  return in_one_pass(
      [&](const auto& t, const auto& x) { return times_slope_of_power(t, x, exponent); }, t, x);
}

// Only a term for tensors: if alpha is one, the result is t itself.
Tensor scaled_by(const Tensor& t, const Scalar& alpha) {
  return times(t, alpha);
}

// Any number to the power of 0 is 1, so the derivative by the base is zero there. But the
// derivative of that by the exponent is base ** -1, for any base that has powers for exponents near
// 0.
Tensor power_base(
    const Tensor& t, const Tensor& base, const Tensor& narrow_exponent, const Tensor& power) {
  const Tensor exponent = as_wide_as(narrow_exponent, power);
  Tensor is_constant = exponent == 0;
  if (is_differentiated_below({exponent})) {
    const Tensor is_positive = base.is_complex() ? base != 0 : base > 0;
    const Tensor has_powers = is_positive.logical_and(base.isfinite());
    is_constant = is_constant.logical_and(has_powers.logical_not());
  }
  return at::where(is_constant, 0, t * (exponent * base.pow(exponent - 1)));
}

// 0 ** e counts as constant for any e >= 0, so log(0) must not enter the product. If differentiated
// again, the derivative by the base is nan there, because it is infinite for some e.
Tensor power_exponent(
    const Tensor& t, const Tensor& narrow_base, const Tensor& exponent, const Tensor& power) {
  const Tensor base = as_wide_as(narrow_base, power);
  const Tensor is_positive = exponent.is_complex()
                                 ? (at::imag(exponent) == 0).logical_and(at::real(exponent) >= 0)
                                 : exponent >= 0;
  const Tensor is_zero = (base == 0).logical_and(is_positive);
  const Tensor slope = power * at::where(is_zero, 1, base).log();
  return t * (is_differentiated_below({base})
                  ? at::where(is_zero, base.reciprocal().reciprocal(), slope)
                  : slope);
}

Tensor scalar_power_exponent(
    const Tensor& t, const Scalar& base, const Tensor& exponent, const Tensor& power) {
  if (!base.equal(0.0)) {
    return t * (power * base.log());
  }
  const Tensor as_tensor = at::scalar_tensor(base, power.options());
  return power_exponent(t, as_tensor, exponent, power);
}

// t / (of^2 + other^2) * of, a derivative of the angle of two coordinates. The squares would
// underflow or overflow long before the quotient does. The angle is undefined at the origin, where
// the derivative is taken as zero. The distance is bounded below by the smallest normal number,
// also where denormals are flushed to zero.
template <class T>
IfNumber<T> turned(T t, T of, T other) {
  const T distance = std::max(std::hypot(of, other), std::numeric_limits<T>::min());
  return t * (of / distance) / distance;
}

double smallest_normal(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::min();
    case at::kHalf:
      return std::numeric_limits<c10::Half>::min();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::min();
    default:
      return std::numeric_limits<float>::min();
  }
}

// The second derivatives at the origin are zero too: they are computed from the values that replace
// 0 / 0.
Tensor turned(const Tensor& t, const Tensor& of, const Tensor& other) {
  Tensor distance = at::hypot(of, other);
  if (!is_differentiated_below({of, other}) && !is_symbolic(of)) {
    distance = distance.clamp_min(smallest_normal(distance.scalar_type()));
    return t * (of / distance) / distance;
  }
  const Tensor is_origin = distance == 0;
  distance = at::hypot(at::where(is_origin, 1, of), other);
  return (t * (of / distance) / distance).masked_fill(is_origin, 0);
}

// `values`, a function of x, with zeros where x is zero.
Tensor at_nonzero(Tensor values, const Tensor& x) {
  return zero_where(x == 0, std::move(values));
}

Scalar one_minus(const Scalar& x) {
  return x.isComplex() ? Scalar(1.0 - x.toComplexDouble()) : Scalar(1 - x.toDouble());
}

// The position of each of the result's values between start and end, from 0 to 1.
Tensor fractions(const Tensor& result, int64_t steps) {
  return at::linspace(0, 1, steps, result.options());
}

const Scalar kImaginaryUnit(c10::complex<double>(0, 1));

// No formula is known for the derivative by the first argument.
void refuse_first(const JvpCall& call) {
  if (call.has_tangent(0)) {
    raise_not_implemented(
        "jvp can't differentiate {} with respect to its first argument: no formula is known. Keep "
        "that argument constant, or register a rule with torchlayers.extend.jvp_rule.",
        call.op().name());
  }
}

Tensor gamma_density(const Tensor& shape, const Tensor& x) {
  const auto dtype = at::result_type(shape, x);
  const Tensor a = shape.to(dtype);
  return ((a - 1) * x.to(dtype).log() - x - a.lgamma()).exp();
}

template <int Sign>
void incomplete_gamma(JvpCall& call) {
  refuse_first(call);
  call.run();
  call.set_tangent(0, Sign * call.tangent(1) * gamma_density(call[0], call[1]));
}

Tensor zeta_of_second(const Tensor& t, const Tensor& s, const Tensor& q) {
  return -t * s * at::special_zeta(s + 1, q);
}

Tensor zeta_of_scalar(const Tensor& t, const Scalar& s, const Tensor& q) {
  return t * -s.toDouble() * at::special_zeta(s.toDouble() + 1, q);
}

void zeta(JvpCall& call) {
  refuse_first(call);
  call.run();
  call.set_tangent(0, zeta_of_second(call.tangent(1), call[0], call[1]));
}

} // namespace

void add_binary(Table& rules) {
  rules["add.Tensor"].terms(TERM(0, t), TERM(1, scaled_by(t, c.scalar(2)))).linear();
  rules["sub.Tensor"].terms(TERM(0, t), TERM(1, times(-t, c.scalar(2)))).linear();
  rules["rsub.Tensor"].terms(TERM(0, times(-t, c.scalar(2))), TERM(1, t)).linear();
  ELEMENTWISE("add.Scalar", t).piecewise_linear();
  ELEMENTWISE("sub.Scalar", t).piecewise_linear();
  ELEMENTWISE("rsub.Scalar", times(-t, c.scalar(2))).piecewise_linear();
  rules["mul.Tensor"].jvp(mul).vjp(TERM(0, t * c[1]), TERM(1, c[0] * t));
  ELEMENTWISE("mul.Scalar", t * c.scalar(1)).linear();
  rules["div.Tensor"].jvp(quotient).vjp(TERM(0, t / c[1]), TERM(1, -t * (c[0] / c[1] / c[1])));
  ELEMENTWISE("div.Scalar", t / c.scalar(1)).linear();
  rules["div.Tensor_mode"]
      .jvp(quotient_with_mode)
      .vjp(
          TERM(0, c.arg(2).isNone() ? t / c[1] : Tensor()),
          TERM(1, c.arg(2).isNone() ? -t * (c[0] / c[1] / c[1]) : Tensor()));
  ELEMENTWISE("div.Scalar_mode", c.arg(2).isNone() ? t / c.scalar(1) : Tensor());
  rules["addcmul"].terms(
      TERM(0, t), TERM(1, times(t * c[2], c.scalar(3))), TERM(2, times(c[1] * t, c.scalar(3))));
  rules["addcdiv"].terms(
      TERM(0, t),
      TERM(1, times(t / c[2], c.scalar(3))),
      TERM(2, -times(t * (c[1] / c[2] / c[2]), c.scalar(3))));
  rules["lerp.Scalar"]
      .terms(TERM(0, t * one_minus(c.scalar(2))), TERM(1, t * c.scalar(2)))
      .linear();
  rules["lerp.Tensor"].terms(
      TERM(0, t * (1 - c[2])), TERM(1, t * c[2]), TERM(2, t * (c[1] - c[0])));

  ELEMENTWISE("pow.Tensor_Scalar", power_of_scalar(t, x, c.scalar(1)));
  rules["pow.Tensor_Tensor"].terms(
      TERM(0, power_base(t, c[0], c[1], y)), TERM(1, power_exponent(t, c[0], c[1], y)));
  rules["pow.Scalar"].terms(TERM(1, scalar_power_exponent(t, c.scalar(0), c[1], y)));
  rules["atan2"].terms(TERM(0, turned(t, c[1], c[0])), TERM(1, -turned(t, c[0], c[1])));
  rules["hypot"].terms(TERM(0, t * (c[0] / y)), TERM(1, t * (c[1] / y)));
  rules["logaddexp"].terms(
      TERM(0, t * softplus_slope(difference(c[0], c[1]))),
      TERM(1, t * softplus_slope(difference(c[1], c[0]))));
  rules["logaddexp2"].terms(
      TERM(0, t / (1 + difference(c[1], c[0]).exp2())),
      TERM(1, t / (1 + difference(c[0], c[1]).exp2())));
  rules["xlogy.Tensor"].terms(
      TERM(0, zero_where((c[0] == 0).logical_and(c[1] <= 0), at::xlogy(t, c[1]))),
      TERM(1, t * c[0] / c[1]));
  rules["remainder.Tensor"]
      .terms(TERM(0, t), TERM(1, -t * c[0].div(c[1], "floor")))
      .piecewise_linear();
  rules["fmod.Tensor"].terms(TERM(0, t), TERM(1, -t * c[0].div(c[1], "trunc"))).piecewise_linear();
  ELEMENTWISE("remainder.Scalar", t).piecewise_linear();
  rules["remainder.Scalar_Tensor"]
      .terms(TERM(1, -t * at::scalar_tensor(c.scalar(0), c[1].options()).div(c[1], "floor")))
      .piecewise_linear();
  ELEMENTWISE("fmod.Scalar", t).piecewise_linear();
  rules["copysign.Tensor"].terms(TERM(0, t * at_nonzero(y / x, x))).piecewise_linear();
  ELEMENTWISE("copysign.Scalar", t * at_nonzero(y / x, x)).piecewise_linear();
  rules["special_xlog1py"].terms(
      TERM(0, zero_where((c[0] == 0).logical_and(c[1] <= -1), at::special_xlog1py(t, c[1]))),
      TERM(1, t * c[0] / (c[1] + 1)));
  rules["igamma"].jvp(incomplete_gamma<1>).vjp(VJP(1, g * gamma_density(c[0], c[1])));
  rules["igammac"].jvp(incomplete_gamma<-1>).vjp(VJP(1, -g * gamma_density(c[0], c[1])));
  rules["special_zeta"].jvp(zeta).vjp(VJP(1, zeta_of_second(g, c[0], c[1])));
  rules["special_zeta.self_scalar"].terms(TERM(1, zeta_of_scalar(t, c.scalar(0), c[1])));
  rules["ldexp.Tensor"].terms(TERM(0, t * at::pow(2, c[1])), TERM(1, at::mul(t * y, M_LN2)));
  rules["nextafter"]
      .terms(TERM(0, at::where(c[0] != c[1], t, 0)), TERM(1, Tensor()))
      .piecewise_linear();
  rules["complex"]
      .jvp(ELEMENTWISE_TANGENT(0, t), ELEMENTWISE_TANGENT(1, t * kImaginaryUnit))
      .vjp(VJP(0, at::real(g)), VJP(1, at::imag(g)))
      .linear();
  rules["polar"]
      .jvp(
          ELEMENTWISE_TANGENT(0, t * at::polar(at::ones_like(c[1]), c[1])),
          ELEMENTWISE_TANGENT(1, t * y * kImaginaryUnit))
      .vjp(VJP(0, g * y.sgn().conj()), VJP(1, g * (y * kImaginaryUnit).conj()));
  rules["linspace.Tensor_Tensor"]
      .terms(TERM(0, t * (1 - fractions(y, c.integer(2)))), TERM(1, t * fractions(y, c.integer(2))))
      .piecewise_linear();
  rules["linspace.Tensor_Scalar"]
      .terms(TERM(0, t * (1 - fractions(y, c.integer(2)))))
      .piecewise_linear();
  rules["linspace.Scalar_Tensor"].terms(TERM(1, t * fractions(y, c.integer(2)))).piecewise_linear();
}

} // namespace torchlayers
