// The functions that a rule's line calls, overloaded for plain numbers under the names of ATen's
// for tensors; the argument's type selects the overload. NOTE [One pass].
#pragma once

#include <cmath>
#include <type_traits>

#include "core/aten_functions.h"

namespace torchlayers {

using std::cos;
using std::cosh;
using std::exp;
using std::exp2;
using std::log;
using std::sin;
using std::sinh;
using std::sqrt;

// ATen's own operator would first fill a tensor with the number, which is another kernel launch.
template <class Number>
  requires std::is_arithmetic_v<Number>
at::Tensor operator-(Number number, const at::Tensor& tensor) {
  return at::rsub(tensor, number);
}

template <class T>
using IfNumber = std::enable_if_t<std::is_floating_point_v<T>, T>;

template <class T>
IfNumber<T> rsqrt(T x) {
  return 1 / std::sqrt(x);
}

// Handles the exponents for which ATen has special kernels. These differ from std::pow at zeros and
// infinities (the square root of -0 is -0, and of -inf nan) and where a square overflows.
template <class T>
IfNumber<T> pow(T x, double exponent) {
  if (exponent == 0.5) {
    return std::sqrt(x);
  }
  if (exponent == -0.5) {
    return rsqrt(x);
  }
  if (exponent == 2) {
    return x * x;
  }
  if (exponent == -2) {
    return 1 / (x * x);
  }
  return std::pow(x, static_cast<T>(exponent));
}

template <class T>
IfNumber<T> sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

template <class Condition, class Yes, class No>
std::enable_if_t<std::is_arithmetic_v<Condition>, std::common_type_t<Yes, No>> where(
    Condition condition, Yes yes, No no) {
  return condition != 0 ? yes : no;
}

template <class T>
IfNumber<T> zero_where(bool condition, T x) {
  return condition ? 0 : x;
}

template <class T>
IfNumber<T> cube(T x) {
  return x * x * x;
}

inline double one_minus(double x) {
  return 1 - x;
}

template <class T>
IfNumber<T> conjugated(T x) {
  return x;
}

template <class T>
IfNumber<T> times(T x, T factor) {
  return x * factor;
}

template <class T>
IfNumber<T> addcmul(T sum, T a, T b) {
  return sum + a * b;
}

template <class T>
IfNumber<T> tanh_backward(T g, T y) {
  return g * (1 - y * y);
}

template <class T>
IfNumber<T> sigmoid_backward(T g, T y) {
  return g * (1 - y) * y;
}

template <class T>
IfNumber<T> threshold_backward(T g, T x, double threshold) {
  return x <= threshold ? 0 : g;
}

template <class T>
IfNumber<T> leaky_relu_backward(T g, T x, T slope, bool /*self_is_result*/) {
  return x > 0 ? g : g * slope;
}

template <class T>
IfNumber<T> softplus_backward(T g, T x, T beta, T threshold) {
  const T z = std::exp(x * beta); // not by the sigmoid: where exp(-x) overflows, this is denormal
  return x * beta > threshold ? g : g * z / (z + 1);
}

} // namespace torchlayers
