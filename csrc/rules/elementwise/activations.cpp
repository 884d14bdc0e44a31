// Activation functions. ATen's backward operators multiply by the derivative, which is what
// a tangent needs too.
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// torch has no derivative of the backward operators of these three: where one is needed, the
// derivative is written with other operators.
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

Tensor mish_tangent(const Tensor& t, const Tensor& x) {
  if (!is_differentiated_below({t, x})) {
    return at::mish_backward(t, x);
  }
  const Tensor h = at::softplus(x).tanh();
  return t * (h + x * x.sigmoid() * (1 - h * h));
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

// The derivative of x times the normal distribution function, and of its approximation by tanh
// (Hendrycks and Gimpel 2016).
template <class T>
IfNumber<T> gelu_slope(T x) {
  const T share = (1 + std::erf(x * static_cast<T>(M_SQRT1_2))) / 2;
  return share + x * std::exp(-x * x / 2) * static_cast<T>(M_2_SQRTPI * M_SQRT1_2 / 2);
}

template <class T>
IfNumber<T> gelu_slope_by_tanh(T x) {
  constexpr T kScale = M_2_SQRTPI * M_SQRT1_2; // sqrt(2 / pi)
  constexpr T kCubic = 0.044715;
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

constexpr double kSeluAlpha = 1.6732632423543772848170429916717;
constexpr double kSeluScale = 1.0507009873554804934193349852946;

// _prelu_kernel(x, weight), the weight broadcast to x.
Tensor prelu_of_input(const Tensor& t, const Tensor& x, const Tensor& weight) {
  return at::where(x > 0, t, t * weight);
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

} // namespace

void add_activations(Table& rules) {
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
      .jvp(TANGENT(0, glu_slope(t, x, y, c.integer(1))))
      .vjp(VJP(0, at::glu_backward(g, x, c.integer(1))));
  rules["glu_backward"]
      .jvp(TANGENT(0, on_first(t, c)), TANGENT(1, glu_curvature(t, c[0], c[1], c.integer(2))))
      .vjp(
          VJP(0, glu_slope(g, c[1], at::glu(c[1], c.integer(2)), c.integer(2))),
          VJP(1, glu_curvature(g, c[0], c[1], c.integer(2))));
  rules["_prelu_kernel"]
      .jvp(
          ELEMENTWISE_TANGENT(0, prelu_of_input(t, x, c[1])),
          ELEMENTWISE_TANGENT(1, prelu_of_weight(t, x)))
      .vjp(prelu_vjp, {.by = {"self", "weight"}, .saves = {"self", "weight"}});
  rules["log_sigmoid_forward"]
      .jvp(ELEMENTWISE_TANGENT(0, at::log_sigmoid_backward(broadcast_to(t, x), x, c.result(1))))
      .vjp(VJP(0, at::log_sigmoid_backward(g, x, c.result(1))));
}

} // namespace torchlayers
