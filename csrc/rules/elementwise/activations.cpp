// Activation functions, and their backward operators, which appear when a gradient is
// differentiated: linear in the cotangent g, and nonlinear in the other arguments. They multiply by
// the derivative, which is what a tangent needs too.
#include "rules/elementwise/activations.h"

#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Scalar;
using at::Tensor;

Tensor tanh_tangent(const Tensor& t, const Tensor& y) {
  return y.is_complex() ? t * (1 - y * y) : at::tanh_backward(t, y);
}

template <class T>
IfNumber<T> tanh_tangent(T t, T y) {
  return t * (1 - y * y);
}

Tensor sigmoid_tangent(const Tensor& t, const Tensor& y) {
  return y.is_complex() ? t * (1 - y) * y : at::sigmoid_backward(t, y);
}

template <class T>
IfNumber<T> sigmoid_tangent(T t, T y) {
  return t * (1 - y) * y;
}

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

// torch has no derivative of the backward operators of silu, mish and logit: where one is needed,
// the derivative is written with other operators.
Tensor silu_tangent(const Tensor& t, const Tensor& x) {
  if (!x.is_complex() && !is_differentiated_below({t, x})) {
    return at::silu_backward(t, x);
  }
  const Tensor s = x.sigmoid();
  return t * s * (1 + x * (1 - s));
}

template <class T>
IfNumber<T> silu_tangent(T t, T x) {
  const T s = sigmoid(x);
  return t * s * (1 + x * (1 - s));
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

// mish = x h, with h = tanh(softplus(x)), whose slope is w.
struct OfMish {
  Tensor s, h, w;
  explicit OfMish(const Tensor& x)
      : s(x.sigmoid()), h(at::softplus(x).tanh()), w(at::tanh_backward(s, h)) {}
};

Tensor mish_tangent(const Tensor& t, const Tensor& x) {
  if (!is_differentiated_below({t, x})) {
    return at::mish_backward(t, x);
  }
  const OfMish of(x);
  return t * (of.h + x * of.w);
}

Tensor mish_curvature(const Tensor& t, const Tensor& g, const Tensor& x) {
  const auto [s, h, w] = OfMish(x);
  return t * g * w * (at::addcmul(x, x, at::addcmul(s, h, s, 2), -1) + 2);
}

Tensor logit_tangent(const Tensor& t, const Tensor& x, const c10::IValue& bound) {
  const auto eps = bound.toOptional<double>();
  if (!is_differentiated_below({t, x})) {
    return at::logit_backward(t, x, eps);
  }
  const Tensor slope = t / (x * (1 - x));
  if (!eps) {
    return at::where((x >= 0).logical_and(x <= 1), slope, NAN);
  }
  return at::where((x >= *eps).logical_and(x <= 1 - *eps), slope, 0);
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

// gelu is x times the normal distribution function, or the approximation of that by tanh (Hendrycks
// and Gimpel 2016).
constexpr double kNormalDensity = M_2_SQRTPI * M_SQRT1_2 / 2; // at zero
constexpr double kGeluScale = M_2_SQRTPI * M_SQRT1_2;         // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <class T>
IfNumber<T> gelu_slope(T x) {
  const T share = (1 + std::erf(x * static_cast<T>(M_SQRT1_2))) / 2;
  return share + x * std::exp(-x * x / 2) * static_cast<T>(kNormalDensity);
}

template <class T>
IfNumber<T> gelu_slope_by_tanh(T x) {
  constexpr T kScale = kGeluScale;
  constexpr T kCubic = kGeluCubic;
  const T h = std::tanh(kScale * x * (1 + kCubic * x * x));
  return (1 + h + x * (1 - h * h) * kScale * (1 + 3 * kCubic * x * x)) / 2;
}

Tensor gelu_tangent(const Tensor& t, const Operands& call) {
  const auto approximate = call.arg(1).toStringView();
  const bool is_exact = approximate == "none";
  return in_one_pass(
      [&](const auto& t, const auto& x) {
        if constexpr (std::is_same_v<decltype(t), const Tensor&>) {
          return at::gelu_backward(broadcast_to(t, x), x, approximate);
        } else {
          return t * (is_exact ? gelu_slope(x) : gelu_slope_by_tanh(x));
        }
      },
      t,
      call[0]);
}

Tensor gelu_curvature(const Tensor& t, const Operands& call) {
  const Tensor& g = call[0];
  const Tensor& x = call[1];
  const Tensor square = x * x;
  if (call.arg(2).toStringView() == "none") {
    return g * t * kNormalDensity * (2 - square) * (square * -0.5).exp();
  }
  const Tensor h = (kGeluScale * x * (1 + kGeluCubic * square)).tanh();
  const Tensor slope = kGeluScale * (1 + 3 * kGeluCubic * square);
  const Tensor bend = 6 * kGeluScale * kGeluCubic * x;
  const Tensor sech = 1 - h * h;
  return g * t * sech * (slope + 0.5 * x * (bend - 2 * h * slope * slope));
}

Tensor between(const Tensor& x, double low, double high) {
  return (x > low).logical_and(x < high);
}

constexpr double kSeluAlpha = 1.6732632423543772848170429916717;
constexpr double kSeluScale = 1.0507009873554804934193349852946;

// _prelu_kernel(x, weight), the weight broadcast to x.
Tensor prelu_of_input(const Tensor& t, const Tensor& is_over, const Tensor& weight) {
  return at::where(is_over, t, t * weight);
}

Tensor prelu_of_weight(const Tensor& t, const Tensor& x) {
  return zero_where(x > 0, x * t);
}

void prelu_vjp(VjpCall& call) {
  const auto [by_x, by_weight] = at::_prelu_kernel_backward(call.cotangents()[0], call[0], call[1]);
  if (call.wants(0)) {
    call.give(0, by_x);
  }
  if (call.wants(1)) {
    call.give(1, by_weight);
  }
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
          {has_g ? prelu_of_input(tg, is_over, weight) : Tensor(),
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
    const Tensor input = by_input.defined() ? prelu_of_input(by_input, is_over, weight) : Tensor();
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

// glu = a s with s = sigmoid(b), for the halves a and b of x.
Tensor glu_curvature(const Tensor& t, const Tensor& g, const Tensor& x, int64_t dim) {
  const auto halves = x.chunk(2, dim);
  const auto tangents = t.chunk(2, dim);
  const Tensor s = halves[1].sigmoid();
  const Tensor slope = g * s * (1 - s);
  const Tensor of_gate = tangents[0] + halves[0] * (1 - 2 * s) * tangents[1];
  return at::cat({slope * tangents[1], slope * of_gate}, dim);
}

// The tangent of y = glu(x), of which glu_backward is the transpose. torch can't differentiate its
// kernel.
Tensor glu_slope(const Tensor& t, const Tensor& x, const Tensor& y, int64_t dim) {
  if (!is_differentiated_below({t, x})) {
    return at::glu_jvp(y, x, t, dim);
  }
  const auto halves = x.chunk(2, dim);
  const auto tangents = t.chunk(2, dim);
  const Tensor s = halves[1].sigmoid();
  return s * (tangents[0] + halves[0] * (1 - s) * tangents[1]);
}

Tensor log_sigmoid_curvature(const Tensor& t, const Tensor& g, const Tensor& x) {
  const Tensor s = x.sigmoid();
  return t * g * s * (s - 1);
}

} // namespace

Tensor softplus_slope(const Tensor& x) {
  return x.sigmoid();
}

void add_activations(Table& rules) {
  ELEMENTWISE("tanh", tanh_tangent(t, y)).has_slope(1, 0, -1);
  ELEMENTWISE("sigmoid", sigmoid_tangent(t, y)).has_slope(0, 1, -1);
  ELEMENTWISE("relu", threshold_backward(t, y, 0)).piecewise_linear();
  ELEMENTWISE("silu", silu_tangent(t, x));
  ELEMENTWISE("mish", mish_tangent(t, x));
  ELEMENTWISE("logit", logit_tangent(t, x, c.arg(1)));
  ELEMENTWISE("gelu", gelu_tangent(t, c));
  ELEMENTWISE(
      "elu", at::elu_backward(t, c.scalar(1), c.scalar(2), c.scalar(3), /*is_result=*/false, x));
  ELEMENTWISE(
      "celu",
      at::elu_backward(t, c.scalar(1), 1, 1 / c.scalar(1).toDouble(), /*is_result=*/false, x));
  ELEMENTWISE("selu", at::elu_backward(t, kSeluAlpha, kSeluScale, 1, /*is_result=*/false, x));
  ELEMENTWISE("hardshrink", at::hardshrink_backward(t, x, c.scalar(1))).piecewise_linear();
  ELEMENTWISE("hardsigmoid", at::hardsigmoid_backward(t, x)).piecewise_linear();
  ELEMENTWISE("hardswish", at::hardswish_backward(t, x));
  ELEMENTWISE("hardtanh", at::hardtanh_backward(t, x, c.scalar(1), c.scalar(2))).piecewise_linear();
  ELEMENTWISE("leaky_relu", leaky_relu_backward(t, x, c.scalar(1), /*self_is_result=*/false))
      .piecewise_linear();
  ELEMENTWISE("softplus", softplus_backward(t, x, c.scalar(1), c.scalar(2)));
  ELEMENTWISE("softshrink", at::softshrink_backward(t, x, c.scalar(1))).piecewise_linear();
  ELEMENTWISE("threshold", threshold_backward(t, x, c.scalar(1))).piecewise_linear();
  rules["glu"]
      .jvp(TANGENT(0, glu_slope(t, x, y, c.dim(1))))
      .vjp(VJP(0, at::glu_backward(g, x, c.dim(1))));
  rules["glu_backward"]
      .jvp(TANGENT(0, on_first(t, c)), TANGENT(1, glu_curvature(t, c[0], c[1], c.dim(2))))
      .vjp(
          VJP(0, glu_slope(g, c[1], at::glu(c[1], c.dim(2)), c.dim(2))),
          VJP(1, glu_curvature(g, c[0], c[1], c.dim(2))));
  rules["_prelu_kernel"]
      .jvp(
          ELEMENTWISE_TANGENT(0, prelu_of_input(t, x > 0, c[1])),
          ELEMENTWISE_TANGENT(1, prelu_of_weight(t, x)))
      .vjp(prelu_vjp, {.by = {"self", "weight"}, .saves = {"self", "weight"}});
  rules["log_sigmoid_forward"]
      .jvp(ELEMENTWISE_TANGENT(0, at::log_sigmoid_backward(broadcast_to(t, x), x, c.result(1))))
      .vjp(VJP(0, at::log_sigmoid_backward(g, x, c.result(1))));

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
