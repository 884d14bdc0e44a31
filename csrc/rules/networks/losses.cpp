// Losses: computed elementwise, then reduced.
#include "rules/elementwise/activations.h"
#include "rules/elementwise/promotion.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor reduce(const Tensor& elements, int64_t reduction) {
  switch (reduction) {
    case at::Reduction::Mean:
      return elements.mean();
    case at::Reduction::Sum:
      return elements.sum();
    default:
      return elements;
  }
}

// The same for an expression of elements, all of one size.
template <class Expression>
Tensor reduce(
    const Expression& expression,
    int64_t reduction,
    const Tensor& x,
    const Tensor& target,
    const Tensor& t) {
  const auto count = x.sym_numel().maybe_as_int();
  if (reduction != at::Reduction::None && count && x.sym_sizes() == target.sym_sizes()) {
    const double scale = reduction == at::Reduction::Mean ? 1.0 / static_cast<double>(*count) : 1;
    const Tensor sum = sum_if_in_one_pass(
        [&](auto x, auto target, auto t) { return scale * expression(x, target, t); },
        x,
        target,
        t);
    if (sum.defined()) {
      return sum;
    }
  }
  return reduce(in_one_pass(expression, x, target, t), reduction);
}

// Divides a gradient by the number of elements if the reduction is a mean.
Tensor share(const Tensor& elements, int64_t reduction, const Tensor& of) {
  return reduction == at::Reduction::Mean ? elements / of.sym_numel() : elements;
}

// Losses of the difference of their two arguments: `of_slope` reduces the loss's derivative times
// t.
template <class Slope>
void of_difference(JvpCall& call, const Slope& of_slope) {
  call.run();
  const Tensor t = call.has_tangent(0) && call.has_tangent(1) ? call.tangent(0) - call.tangent(1)
                   : call.has_tangent(0)                      ? call.tangent(0)
                                                              : -call.tangent(1);
  call.set_tangent(0, of_slope(t, call.integer(2)));
}

void mse_loss(JvpCall& call) {
  of_difference(call, [&](const Tensor& t, int64_t reduction) {
    return reduce(
        [](const auto& x, const auto& target, const auto& t) { return 2 * (x - target) * t; },
        reduction,
        promoted(call[0], call[1]),
        promoted(call[1], call[0]),
        t);
  });
}

// torch's kernels of the two derivatives take one dtype.
Tensor smooth_l1_slope(
    const Tensor& t, const Tensor& x, const Tensor& target, int64_t reduction, double beta) {
  const Tensor wide = promoted(x, target);
  return at::smooth_l1_loss_backward(
      as_wide_as(t, wide), wide, promoted(target, x), reduction, beta);
}

Tensor huber_slope(
    const Tensor& t, const Tensor& x, const Tensor& target, int64_t reduction, double delta) {
  const Tensor wide = promoted(x, target);
  return at::huber_loss_backward(as_wide_as(t, wide), wide, promoted(target, x), reduction, delta);
}

void smooth_l1_loss(JvpCall& call) {
  of_difference(call, [&](const Tensor& t, int64_t reduction) {
    return reduce(
        smooth_l1_slope(t, call[0], call[1], at::Reduction::None, call.number(3)), reduction);
  });
}

void huber_loss(JvpCall& call) {
  of_difference(call, [&](const Tensor& t, int64_t reduction) {
    return reduce(huber_slope(t, call[0], call[1], at::Reduction::None, call.number(3)), reduction);
  });
}

Tensor weighted(const Tensor& elements, const Tensor& weight) {
  return weight.defined() ? elements * weight : elements;
}

Tensor cross_entropy_of_input(const Tensor& t, const Operands& call) {
  const auto weight = call[2].defined() ? std::optional<Tensor>(call[2]) : std::optional<Tensor>();
  return reduce(
      at::binary_cross_entropy_backward(t, call[0], call[1], weight, at::Reduction::None),
      call.integer(3));
}

// The loss has its logarithms clamped; torch's derivative by the target does not.
Tensor cross_entropy_slope_of_target(const Operands& call) {
  return (1 - call[0]).log().clamp_min(-100) - call[0].log().clamp_min(-100);
}

Tensor cross_entropy_of_target(const Tensor& t, const Operands& call) {
  return reduce(weighted(t * cross_entropy_slope_of_target(call), call[2]), call.integer(3));
}

Tensor unweighted_cross_entropy(const Operands& call) {
  return at::binary_cross_entropy(call[0], call[1], std::nullopt, at::Reduction::None);
}

Tensor cross_entropy_of_weight(const Tensor& t, const Operands& call) {
  return reduce(t * unweighted_cross_entropy(call), call.integer(3));
}

// binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction)
Tensor with_logits_slope(const Operands& call) {
  const Tensor& target = call[1];
  const Tensor p = softplus_slope(call[0]);
  if (!call[3].defined()) {
    return p - target;
  }
  const Tensor positive = call[3] * target;
  return (positive + 1 - target) * p - positive;
}

Tensor with_logits_of_input(const Tensor& t, const Operands& call) {
  return reduce(weighted(t * with_logits_slope(call), call[2]), call.integer(4));
}

Tensor with_logits_slope_of_target(const Operands& call) {
  const Tensor& x = call[0];
  return call[3].defined() ? at::log_sigmoid(-x) - call[3] * at::log_sigmoid(x) : -x;
}

Tensor with_logits_of_target(const Tensor& t, const Operands& call) {
  return reduce(weighted(t * with_logits_slope_of_target(call), call[2]), call.integer(4));
}

// The loss without its weight, and without the weight of the positive examples.
Tensor without_weight(const Operands& call) {
  return at::binary_cross_entropy_with_logits(
      call[0], call[1], std::nullopt, call.optional(3), at::Reduction::None);
}

Tensor with_logits_of_weight(const Tensor& t, const Operands& call) {
  return reduce(t * without_weight(call), call.integer(4));
}

Tensor with_logits_slope_of_positive(const Operands& call) {
  return -call[1] * at::log_sigmoid(call[0]);
}

Tensor with_logits_of_positive(const Tensor& t, const Operands& call) {
  return reduce(weighted(t * with_logits_slope_of_positive(call), call[2]), call.integer(4));
}

Tensor soft_margin_slope(const Tensor& t, const Operands& call, size_t other) {
  return -t * call[other] * softplus_slope(-(call[0] * call[1]));
}

Tensor soft_margin(const Tensor& t, const Operands& call, size_t other) {
  return reduce(soft_margin_slope(t, call, other), call.integer(2));
}

// multi_margin_loss(x, target, p, margin, weight, reduction), where p is 1 or 2: torch's gradient
// has no derivative by x.
Tensor multi_margin_gradient(const Tensor& g, const Operands& call) {
  const Tensor& x = call[0];
  if (!is_differentiated_below({g, x})) {
    return at::multi_margin_loss_backward(
        g, x, call[1], call.scalar(2), call.scalar(3), call.optional(4), call.integer(5));
  }
  if (x.sym_numel() == 0) {
    return at::zeros_like(x);
  }
  const Tensor rows = x.dim() < 2 ? x.reshape({1, -1}) : x;
  const Tensor target = call[1].reshape({-1, 1});
  const Tensor excess = rows - rows.gather(1, target) + call.scalar(3);
  const Tensor counts = (excess > 0).scatter(1, target, false);
  Tensor scale = g.reshape({-1, 1}) / rows.sym_size(1);
  if (call.integer(5) == at::Reduction::Mean) {
    scale = scale / rows.sym_size(0);
  }
  if (call[4].defined()) {
    scale = scale * call[4].take(target);
  }
  const Tensor each = scale * (call.scalar(2).toDouble() == 1 ? at::ones_like(excess) : 2 * excess);
  const Tensor others = at::where(counts, each, 0);
  return others.scatter_add(1, target, -others.sum(1, true)).reshape_symint(x.sym_sizes());
}

// (loss, total weight), linear in the input; the total does not depend on it.
void nll_loss(JvpCall& call) {
  call.run();
  if (call.has_tangent(0)) {
    call.set_tangent(0, call.with({{0, call.tangent(0)}}));
  }
}

// multilabel_margin_loss_forward(x, target, reduction) -> (loss, which classes are targets). The
// tangent, of which its gradient is the transpose.
Tensor multilabel_margin(
    const Tensor& t,
    const Tensor& x,
    const Tensor& target,
    int64_t reduction,
    const Tensor& is_target) {
  const bool is_batch = x.dim() > 1;
  const Tensor ones =
      is_batch ? at::ones_symint({x.sym_size(0)}, x.options()) : at::ones({}, x.options());
  const Tensor products =
      t * at::multilabel_margin_loss_backward(ones, x, target, at::Reduction::None, is_target);
  return reduce(is_batch ? products.sum(1) : products.sum(), reduction);
}

void multilabel_margin_loss(JvpCall& call) {
  call.run();
  call.set_tangent(
      0, multilabel_margin(call.tangent(0), call[0], call[1], call.integer(2), call.result(1)));
}

Tensor mse_backward_of(const Tensor& t, const Operands& call) {
  return share(2 * t * call[0], call.integer(3), call[1]);
}

Tensor huber_backward_of(const Tensor& t, const Operands& call) {
  const Tensor is_square = difference(call[1], call[2]).abs() < call.number(4);
  return share(at::where(is_square, t * call[0], 0), call.integer(3), call[1]);
}

Tensor smooth_l1_backward_of(const Tensor& t, const Operands& call) {
  const double beta = call.number(4);
  const Tensor is_square = difference(call[1], call[2]).abs() < beta;
  return share(at::where(is_square, t * call[0] / beta, 0), call.integer(3), call[1]);
}

// The transpose of the tangent by the first argument.
Tensor binary_cross_entropy_backward_of_first(const Tensor& g, const Operands& call) {
  return reduce(
      at::binary_cross_entropy_backward(g, call[1], call[2], call.optional(3), at::Reduction::None),
      call.integer(4));
}

Tensor binary_cross_entropy_backward_of_input(const Tensor& t, const Operands& call) {
  const Tensor& x = call[1];
  const Tensor& target = call[2];
  const Tensor spread = (x * (1 - x)).clamp_min(1e-12);
  const Tensor slope = 1 / spread - (x - target) * (1 - 2 * x) / (spread * spread);
  return share(weighted(t * call[0] * slope, call[3]), call.integer(4), x);
}

Tensor binary_cross_entropy_backward_of_target(const Tensor& t, const Operands& call) {
  const Tensor& x = call[1];
  const Tensor spread = (x * (1 - x)).clamp_min(1e-12);
  return share(weighted(-t * call[0] / spread, call[3]), call.integer(4), x);
}

Tensor binary_cross_entropy_backward_of_weight(const Tensor& t, const Operands& call) {
  const Tensor unweighted = at::binary_cross_entropy_backward(
      call[0], call[1], call[2], std::nullopt, at::Reduction::None);
  return share(t * unweighted, call.integer(4), call[1]);
}

} // namespace

void add_losses(Table& rules) {
  rules["mse_loss"]
      .jvp(mse_loss)
      .vjp(
          VJP(0, at::mse_loss_backward(g, c[0], c[1], c.integer(2))),
          VJP(1, at::mse_loss_backward(g, c[1], c[0], c.integer(2))))
      .along(Along::Reduces);
  rules["smooth_l1_loss"]
      .jvp(smooth_l1_loss)
      .vjp(
          VJP(0, smooth_l1_slope(g, c[0], c[1], c.integer(2), c.number(3))),
          VJP(1, smooth_l1_slope(g, c[1], c[0], c.integer(2), c.number(3))))
      .along(Along::Reduces);
  rules["huber_loss"]
      .jvp(huber_loss)
      .vjp(
          VJP(0, huber_slope(g, c[0], c[1], c.integer(2), c.number(3))),
          VJP(1, huber_slope(g, c[1], c[0], c.integer(2), c.number(3))))
      .along(Along::Reduces);
  rules["nll_loss_forward"].jvp(nll_loss).vjp(
      VJP(0,
          at::nll_loss_backward_symint(
              g, x, c[1], c.optional(2), c.integer(3), c.size(4), c.result(1))));
  rules["nll_loss2d_forward"].jvp(nll_loss).vjp(
      VJP(0,
          at::nll_loss2d_backward_symint(
              g, x, c[1], c.optional(2), c.integer(3), c.size(4), c.result(1))));
  rules["binary_cross_entropy"]
      .jvp(
          TANGENT(0, cross_entropy_of_input(t, c)),
          TANGENT(1, cross_entropy_of_target(t, c)),
          TANGENT(2, cross_entropy_of_weight(t, c)))
      .vjp(
          VJP(0, at::binary_cross_entropy_backward(g, c[0], c[1], c.optional(2), c.integer(3))),
          VJP(1, share(weighted(g * cross_entropy_slope_of_target(c), c[2]), c.integer(3), x)),
          VJP(2, share(g * unweighted_cross_entropy(c), c.integer(3), x)))
      .along(Along::Reduces);
  rules["binary_cross_entropy_with_logits"]
      .jvp(
          TANGENT(0, with_logits_of_input(t, c)),
          TANGENT(1, with_logits_of_target(t, c)),
          TANGENT(2, with_logits_of_weight(t, c)),
          TANGENT(3, with_logits_of_positive(t, c)))
      .vjp(
          VJP(0, share(weighted(g * with_logits_slope(c), c[2]), c.integer(4), x)),
          VJP(1, share(weighted(g * with_logits_slope_of_target(c), c[2]), c.integer(4), x)),
          VJP(2, share(g * without_weight(c), c.integer(4), x)),
          VJP(3, share(weighted(g * with_logits_slope_of_positive(c), c[2]), c.integer(4), x)))
      .along(Along::Reduces);
  rules["soft_margin_loss"]
      .jvp(TANGENT(0, soft_margin(t, c, 1)), TANGENT(1, soft_margin(t, c, 0)))
      .vjp(VJP(0, share(soft_margin_slope(g, c, 1), c.integer(2), x)))
      .along(Along::Reduces);
  rules["multi_margin_loss"].vjp(VJP(0, multi_margin_gradient(g, c)));
  rules["multilabel_margin_loss_forward"]
      .jvp(multilabel_margin_loss)
      .vjp(VJP(0, at::multilabel_margin_loss_backward(g, x, c[1], c.integer(2), c.result(1))));
  rules["nll_loss_backward"].linear_in(0).vjp(
      VJP(0, at::nll_loss_symint(g, c[2], c.optional(3), c.integer(4), c.size(5))),
      VJP(1, Tensor()));
  rules["nll_loss2d_backward"].linear_in(0).vjp(
      VJP(0, at::nll_loss2d_symint(g, c[2], c.optional(3), c.integer(4), c.size(5))),
      VJP(1, Tensor()));
  rules["multilabel_margin_loss_backward"].linear_in(0).vjp(
      VJP(0, multilabel_margin(g, c[1], c[2], c.integer(3), c[4])), VJP(1, Tensor()));
  rules["mse_loss_backward"].terms(
      TANGENT(0, on_first(t, c)), TERM(1, mse_backward_of(t, c)), TERM(2, -mse_backward_of(t, c)));
  rules["huber_loss_backward"].terms(
      TANGENT(0, on_first(t, c)),
      TERM(1, huber_backward_of(t, c)),
      TERM(2, -huber_backward_of(t, c)));
  rules["smooth_l1_loss_backward"].terms(
      TANGENT(0, on_first(t, c)),
      TERM(1, smooth_l1_backward_of(t, c)),
      TERM(2, -smooth_l1_backward_of(t, c)));
  const Term by_input = TERM(1, binary_cross_entropy_backward_of_input(t, c));
  const Term by_target = TERM(2, binary_cross_entropy_backward_of_target(t, c));
  const Term by_weight = TERM(3, binary_cross_entropy_backward_of_weight(t, c));
  rules["binary_cross_entropy_backward"]
      .jvp(TANGENT(0, on_first(t, c)), by_input, by_target, by_weight)
      .vjp(VJP(0, binary_cross_entropy_backward_of_first(g, c)), by_input, by_target, by_weight);
}

} // namespace torchlayers
