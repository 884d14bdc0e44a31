// Elementwise functions that select one of their arguments: by a condition, or the larger or
// smaller one.
#include "core/torch_versions.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

void choose(JvpCall& call) {
  call.run();
  const Tensor& condition = call[0];
  if (!call.has_tangent(1)) {
    call.set_tangent(
        0,
        in_one_pass(
            [](const auto& condition, const auto& no) { return where(condition, 0, no); },
            condition,
            call.tangent(2)));
  } else if (!call.has_tangent(2)) {
    call.set_tangent(
        0,
        in_one_pass(
            [](const auto& condition, const auto& yes) { return where(condition, yes, 0); },
            condition,
            call.tangent(1)));
  } else {
    call.set_tangent(
        0,
        in_one_pass(
            [](const auto& condition, const auto& yes, const auto& no) {
              return where(condition, yes, no);
            },
            condition,
            call.tangent(1),
            call.tangent(2)));
  }
}

template <class X, class Bound>
auto is_over(const X& x, const Bound& low) {
  if constexpr (kTiesAreShared) {
    return x > low;
  } else {
    return x >= low;
  }
}

template <class X, class Bound>
auto is_under(const X& x, const Bound& high) {
  if constexpr (kTiesAreShared) {
    return x < high;
  } else {
    return x <= high;
  }
}

Tensor inside(const Tensor& x, const c10::IValue& low, const c10::IValue& high) {
  if (low.isNone()) {
    return is_under(x, high.toScalar());
  }
  const Tensor over = is_over(x, low.toScalar());
  return high.isNone() ? over : over.logical_and(is_under(x, high.toScalar()));
}

// Splits t where two values are equal, and returns `elsewhere` otherwise.
Tensor on_ties(const Tensor& t, const Tensor& x, const Tensor& other, const Tensor& elsewhere) {
  return kTiesAreShared ? at::where(x == other, t / 2, elsewhere) : elsewhere;
}

// clamp is the larger of x and the lower bound, and then the smaller of that and the upper bound;
// either bound may be undefined. Where the bounds meet or cross, x gets no share of the derivative.
Tensor meets(const Tensor& x, const Tensor& bound, const Tensor& low, const Tensor& high) {
  const Tensor equal = x == bound;
  return low.defined() && high.defined() ? equal.logical_and(low < high) : equal;
}

// The derivative of clamp with a single bound. It follows maximum and minimum: all of it where one
// is nan.
Tensor of_bound(const Tensor& t, const Tensor& x, const Tensor& bound, const Tensor& is_past) {
  return zero_where(is_past, at::where(x == bound, t / 2, t));
}

Tensor of_low(const Tensor& t, const Tensor& x, const Tensor& low, const Tensor& high) {
  if (!kTiesAreShared) {
    return at::where(high.defined() ? (x < low).logical_and(low < high) : x < low, t, 0);
  }
  if (!high.defined()) {
    return of_bound(t, x, low, x > low);
  }
  const Tensor all = at::where((x < low).logical_and(low <= high), t, 0);
  return at::where(meets(x, low, low, high), t / 2, all);
}

Tensor of_high(const Tensor& t, const Tensor& x, const Tensor& low, const Tensor& high) {
  if (!kTiesAreShared) {
    return at::where(low.defined() ? (x > high).logical_or(high < low) : x > high, t, 0);
  }
  if (!low.defined()) {
    return of_bound(t, x, high, x < high);
  }
  const Tensor is_over = (x > high).logical_and(low <= high).logical_or(high < low);
  return at::where(meets(x, high, low, high), t / 2, at::where(is_over, t, 0));
}

Tensor of_clamped(const Tensor& t, const Tensor& x, const Tensor& low, const Tensor& high) {
  Tensor gradient = t;
  for (const auto& [bound, is_low] : {std::pair(low, true), std::pair(high, false)}) {
    if (!bound.defined()) {
      continue;
    }
    if (kTiesAreShared) {
      gradient = at::where(meets(x, bound, low, high), t / 2, gradient);
      gradient = at::where(is_low ? x < bound : x > bound, 0, gradient);
    } else {
      gradient = at::where(is_low ? x >= bound : x <= bound, gradient, 0);
    }
  }
  return gradient;
}

} // namespace

void add_selection(Table& rules) {
  // One half each where they are equal, and all of it for each where one is nan.
  rules["maximum"]
      .terms(
          TERM(0, zero_where(c[0] < c[1], where(c[0] == c[1], t / 2, t))),
          TERM(1, zero_where(c[0] > c[1], where(c[0] == c[1], t / 2, t))))
      .piecewise_linear();
  rules["minimum"]
      .terms(
          TERM(0, zero_where(c[0] > c[1], where(c[0] == c[1], t / 2, t))),
          TERM(1, zero_where(c[0] < c[1], where(c[0] == c[1], t / 2, t))))
      .piecewise_linear();
  rules["fmax"]
      .terms(
          TERM(0, on_ties(t, c[0], c[1], at::where((c[0] >= c[1]).logical_or(c[1].isnan()), t, 0))),
          TERM(1, on_ties(t, c[0], c[1], at::where((c[0] >= c[1]).logical_or(c[1].isnan()), 0, t))))
      .piecewise_linear();
  rules["fmin"]
      .terms(
          TERM(0, on_ties(t, c[0], c[1], at::where((c[0] <= c[1]).logical_or(c[1].isnan()), t, 0))),
          TERM(1, on_ties(t, c[0], c[1], at::where((c[0] <= c[1]).logical_or(c[1].isnan()), 0, t))))
      .piecewise_linear();
  ELEMENTWISE("clamp", at::where(inside(x, c.arg(1), c.arg(2)), t, 0)).piecewise_linear();
  ELEMENTWISE("clamp_min", where(is_over(x, c.scalar(1)), t, 0)).piecewise_linear();
  ELEMENTWISE("clamp_max", where(is_under(x, c.scalar(1)), t, 0)).piecewise_linear();
  rules["clamp_min.Tensor"]
      .terms(TERM(0, of_clamped(t, c[0], c[1], {})), TERM(1, of_low(t, c[0], c[1], {})))
      .piecewise_linear();
  rules["clamp_max.Tensor"]
      .terms(TERM(0, of_clamped(t, c[0], {}, c[1])), TERM(1, of_high(t, c[0], {}, c[1])))
      .piecewise_linear();

  rules["clamp.Tensor"]
      .terms(
          TERM(0, of_clamped(t, c[0], c[1], c[2])),
          TERM(1, of_low(t, c[0], c[1], c[2])),
          TERM(2, of_high(t, c[0], c[1], c[2])))
      .piecewise_linear();

  rules["heaviside"].terms(TERM(1, at::where(c[0] == 0, t, 0))).piecewise_linear();
  rules["where.self"]
      .jvp(choose)
      .vjp(TERM(1, where(c[0], t, 0)), TERM(2, where(c[0], 0, t)))
      .piecewise_linear();
  ELEMENTWISE("masked_fill.Scalar", t.masked_fill(c[1], 0)).piecewise_linear();
  rules["masked_fill.Tensor"]
      .terms(TERM(0, t.masked_fill(c[1], 0)), TERM(2, at::where(c[1], t, 0)))
      .piecewise_linear();
}

} // namespace torchlayers
