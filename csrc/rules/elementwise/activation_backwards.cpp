// The backward operators of activations, which appear when a gradient is differentiated: linear in
// the cotangent g, and nonlinear in the other arguments.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Scalar;
using at::Tensor;

// tanh' = 1 - y^2, conjugated for complex numbers as a gradient's factor is.
template <class T>
T tanh_curvature(const T& t, const T& g, const T& y) {
  return conjugated(t) * (-2 * conjugated(y) * g);
}

template <class T>
T sigmoid_curvature(const T& t, const T& g, const T& y) {
  return conjugated(t) * g * (1 - 2 * conjugated(y));
}

template <class T, class Parameter>
T softplus_curvature(
    const T& t, const T& g, const T& x, const Parameter& beta, const Parameter& threshold) {
  const T scaled = x * beta;
  return where(scaled > threshold, 0, sigmoid_backward(t * g, sigmoid(scaled)) * beta);
}

template <class T>
T silu_curvature(const T& t, const T& g, const T& x) {
  const T s = sigmoid(x);
  if constexpr (std::is_same_v<T, Tensor>) {
    if (!x.is_complex()) {
      return sigmoid_backward(t * g, s) * (at::addcmul(x, x, s, -2) + 2);
    }
  }
  const T slope = s * (1 - s) * (2 + x * (1 - 2 * s));
  return g * conjugated(t * slope);
}

// mish = x tanh(softplus(x)), and tanh(softplus(x)) has the slope w = (1 - tanh^2) sigmoid.
Tensor mish_curvature(const Tensor& t, const Tensor& g, const Tensor& x) {
  const Tensor h = at::softplus(x).tanh();
  const Tensor s = x.sigmoid();
  const Tensor w = at::tanh_backward(s, h);
  return t * g * w * (at::addcmul(x, x, at::addcmul(s, h, s, 2), -1) + 2);
}

// logit_backward(g, x, eps): g / (x (1 - x)), and zero outside [eps, 1 - eps].
Tensor logit_curvature(const Tensor& t, const Operands& call) {
  const Tensor spread = call[1] * (1 - call[1]);
  const Tensor slope = t * call[0] * (2 * call[1] - 1) / (spread * spread);
  const auto eps = call.arg(2).toOptional<double>();
  if (!eps) {
    return slope;
  }
  const Tensor is_inside = (call[1] >= *eps).logical_and(call[1] <= 1 - *eps);
  return at::where(is_inside, slope, 0);
}

Tensor elu_curvature(const Tensor& t, const Operands& call) {
  const Tensor& g = call[0];
  const Tensor& of = call[5];
  const Scalar alpha = call.scalar(1);
  const Scalar scale = call.scalar(2);
  const Scalar rate = call.scalar(3);
  const bool is_result = call.flag(4);
  if (is_result) {
    return at::where(of < 0, g * t * rate, 0);
  }
  // The exponential of a positive number may be infinite, and zero times that is nan. That of nan
  // is nan.
  const Tensor power = (of.clamp_max(0) * rate).exp();
  const double factor = rate.toDouble() * rate.toDouble() * scale.toDouble() * alpha.toDouble();
  return zero_where(of >= 0, g * t * power * factor);
}

constexpr double kInverseSqrtTwoPi = M_2_SQRTPI * M_SQRT1_2 * 0.5;

Tensor gelu_curvature(const Tensor& t, const Operands& call) {
  const Tensor& g = call[0];
  const Tensor& x = call[1];
  if (call.arg(2).toStringView() == "none") {
    return g * t * (2 - x * x) * (x * x * -0.5).exp() * kInverseSqrtTwoPi;
  }
  constexpr double kScale = M_2_SQRTPI * M_SQRT1_2; // sqrt(2 / pi)
  constexpr double kCubic = 0.044715;
  const Tensor square = x * x;
  const Tensor h = (kScale * x * (1 + kCubic * square)).tanh();
  const Tensor slope = kScale * (1 + 3 * kCubic * square);
  const Tensor bend = 6 * kScale * kCubic * x;
  const Tensor sech = 1 - h * h;
  return g * t * sech * (slope + 0.5 * x * (bend - 2 * h * slope * slope));
}

Tensor between(const Tensor& x, double low, double high) {
  return (x > low).logical_and(x < high);
}

Tensor prelu_input_on_first(const Tensor& t, const Tensor& is_over, const Tensor& weight) {
  return at::where(is_over, t, weight * t);
}

// _prelu_kernel_backward(g, x, weight) -> (gradient of x, gradient of weight)
void prelu_backward(JvpCall& call) {
  call.run();
  const Tensor& g = call[0];
  const Tensor& x = call[1];
  const Tensor& weight = call[2];
  const Tensor is_over = x > 0;
  const bool has_g = call.has_tangent(0);
  const Tensor tg = call.tangent(0);
  call.set_tangent(
      0,
      sum_of(
          {has_g ? prelu_input_on_first(tg, is_over, weight) : Tensor(),
           call.has_tangent(2) ? zero_where(is_over, g * call.tangent(2)) : Tensor()}));
  call.set_tangent(
      1,
      sum_of(
          {has_g ? zero_where(is_over, x * tg) : Tensor(),
           call.has_tangent(1) ? zero_where(is_over, call.tangent(1) * g) : Tensor()}));
}

void prelu_backward_vjp(VjpCall& call) {
  const Tensor& g = call[0];
  const Tensor& x = call[1];
  const Tensor& weight = call[2];
  const Tensor& by_input = call.cotangents()[0];
  const Tensor& by_weight = call.cotangents()[1];
  const Tensor is_over = x > 0;
  if (call.wants(0)) {
    const Tensor input =
        by_input.defined() ? prelu_input_on_first(by_input, is_over, weight) : Tensor();
    call.give(
        0, sum_of({input, by_weight.defined() ? zero_where(is_over, x * by_weight) : Tensor()}));
  }
  if (by_weight.defined() && call.wants(1)) {
    call.give(1, zero_where(is_over, g * by_weight));
  }
  if (by_input.defined() && call.wants(2)) {
    call.give(2, zero_where(is_over, g * by_input));
  }
}

Tensor log_sigmoid_curvature(const Tensor& t, const Tensor& g, const Tensor& x) {
  const Tensor s = x.sigmoid();
  return t * g * s * (s - 1);
}

} // namespace

void add_activation_backwards(Table& rules) {
  rules["tanh_backward"].terms(
      TERM(0, tanh_backward(t, c[1])), CONJUGATE_TERM(1, tanh_curvature(t, c[0], c[1])));
  rules["sigmoid_backward"].terms(
      TERM(0, sigmoid_backward(t, c[1])), CONJUGATE_TERM(1, sigmoid_curvature(t, c[0], c[1])));
  rules["softplus_backward"].terms(
      TERM(0, softplus_backward(t, c[1], c.scalar(2), c.scalar(3))),
      TERM(1, softplus_curvature(t, c[0], c[1], c.scalar(2), c.scalar(3))));
  rules["silu_backward"].terms(linear_in_first(), CONJUGATE_TERM(1, silu_curvature(t, c[0], c[1])));
  rules["mish_backward"].terms(linear_in_first(), TERM(1, mish_curvature(t, c[0], c[1])));
  rules["logit_backward"].terms(linear_in_first(), TERM(1, logit_curvature(t, c)));
  rules["elu_backward"].terms(linear_in_first(), TERM(5, elu_curvature(t, c)));
  rules["gelu_backward"].terms(linear_in_first(), TERM(1, gelu_curvature(t, c)));
  rules["hardswish_backward"].terms(
      linear_in_first(), TERM(1, at::where(between(c[1], -3, 3), c[0] * t / 3, 0)));
  rules["log_sigmoid_backward"].terms(
      TERM(0, at::log_sigmoid_backward(broadcast_to(t, c[1]), c[1], c[2])),
      TERM(1, log_sigmoid_curvature(t, c[0], c[1])));
  rules["_prelu_kernel_backward"]
      .jvp(prelu_backward)
      .vjp(
          prelu_backward_vjp,
          {.by = {"grad_output", "self", "weight"},
           .of = {"result", "result1"},
           .saves = {"grad_output", "self", "weight"}});
  LINEAR("native_dropout_backward", g * c[1] * c.number(2));
  rules["threshold_backward"]
      .terms(TERM(0, threshold_backward(t, c[1], c.scalar(2))), TERM(1, Tensor()))
      .piecewise_linear();
  for (const char* name :
       {"leaky_relu_backward",
        "hardtanh_backward",
        "hardsigmoid_backward",
        "hardshrink_backward",
        "softshrink_backward"}) {
    rules[name]
        .terms(linear_in_first(), TERM(1, Tensor()))
        .piecewise_linear(); // of piecewise linear functions
  }
}

} // namespace torchlayers
