// Connectionist temporal classification: the loss of all ways to align a target with a series.
#include "rules/networks/ctc.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The logarithm of zero, but finite: no derivative is then infinity minus infinity.
constexpr double kNever = -1e30;

// The states of a sample's target are its labels with a blank around each, and a path through them
// moves on by none, one, or two of them (past a blank, between labels that differ) at a time.
// Targets and their lengths differ between samples: of a state beyond the last, nothing is reached.
class Paths {
 public:
  // log_probs is (time, sample, class). Targets are rows, or in one row behind each other.
  Paths(
      const Tensor& log_probs,
      const Tensor& targets,
      Tensor lengths,
      const Tensor& target_lengths,
      int64_t states,
      int64_t blank)
      : log_probs_(log_probs), lengths_(std::move(lengths)) {
    const Tensor order = at::arange(states, target_lengths.options());
    const Tensor ends = 2 * target_lengths.unsqueeze(-1);
    labels_ = with_blanks(targets.to(at::kLong), target_lengths, states / 2, blank)
                  .clamp(0, log_probs.sym_size(2) - 1);
    is_state_ = order <= ends;
    is_last_ = at::logical_or(order == ends, order == ends - 1);
    is_first_ = is_state_.logical_and(order < 2);
    const Tensor before = moved(labels_, 2, blank);
    skips_ = at::logical_and(labels_ != blank, labels_ != before).logical_and(order >= 2);
    seen_ = log_probs.gather(2, at_all_times(labels_)).clamp_min(kNever);
  }

  // The probability of each class at each time, given the target.
  Tensor occupancy() const {
    const Tensor of_states = (reaching() + leaving()).softmax(-1);
    return at::zeros_like(log_probs_).scatter_add(2, at_all_times(labels_), of_states);
  }

  // (time, sample, 1): whether the series has ended.
  Tensor has_ended() const {
    const Tensor times = at::arange(count(), lengths_.options());
    return (times.unsqueeze(-1) >= lengths_).unsqueeze(-1);
  }

 private:
  int64_t count() const {
    return log_probs_.size(0);
  }
  Tensor at_all_times(const Tensor& of_states) const {
    return of_states.expand({count(), -1, -1});
  }

  static Tensor with_blanks(
      const Tensor& targets, const Tensor& target_lengths, int64_t labels, int64_t blank) {
    Tensor rows = targets;
    if (targets.dim() < 2) {
      const Tensor starts = (target_lengths.cumsum(0) - target_lengths).unsqueeze(-1);
      const Tensor places = starts + at::arange(labels, starts.options());
      rows = targets.take(places.clamp_max(std::max<int64_t>(targets.size(0) - 1, 0)));
    }
    const Tensor between = rows.narrow(1, 0, labels).unsqueeze(-1);
    const Tensor pairs = at::cat({at::full_like(between, blank), between}, -1).flatten(1);
    return at::constant_pad_nd(pairs, {0, 1}, blank);
  }

  // By so many states further; back, if negative.
  static Tensor moved(const Tensor& of_states, int64_t by, const at::Scalar& filler) {
    const int64_t size = of_states.size(-1);
    const int64_t shift = std::clamp(by, -size, size);
    return at::constant_pad_nd(of_states, {shift, -shift}, filler);
  }

  static Tensor any_of(const Tensor& stay, const Tensor& step, const Tensor& skip) {
    return at::logsumexp(at::stack({stay, step, skip}), 0);
  }

  // The logarithms of the probabilities to be in a state at a time, having seen all until then; and
  // to see all that follows, from there.
  Tensor reaching() const {
    std::vector<Tensor> all;
    for (int64_t time = 0; time < count(); ++time) {
      Tensor reached;
      if (time == 0) {
        reached = at::where(is_first_, seen_[time], kNever);
      } else {
        const Tensor& last = all.back();
        const Tensor skipped = at::where(skips_, moved(last, 2, kNever), kNever);
        reached = any_of(last, moved(last, 1, kNever), skipped) + seen_[time];
      }
      all.push_back(at::where(is_state_, reached, kNever));
    }
    return at::stack(all);
  }
  Tensor leaving() const {
    std::vector<Tensor> all(count());
    const Tensor ends = at::where(is_last_, at::zeros({}, seen_.options()), kNever);
    Tensor left = at::full_like(seen_[0], kNever);
    for (int64_t time = count() - 1; time >= 0; --time) {
      if (time + 1 < count()) {
        const Tensor next = left + seen_[time + 1];
        const Tensor skipped = moved(at::where(skips_, next, kNever), -2, kNever);
        left = any_of(next, moved(next, -1, kNever), skipped);
      }
      left = at::where((lengths_ == time + 1).unsqueeze(-1), ends, left);
      all[time] = left;
    }
    return at::stack(all);
  }

  const Tensor& log_probs_;
  Tensor lengths_;
  // (sample, state)
  Tensor labels_;
  Tensor is_state_;
  Tensor is_first_;
  Tensor is_last_;
  Tensor skips_; // from two states before
  Tensor seen_;  // (time, sample, state): what the state's class has for its logarithm
};

// torch's gradient has the probability of each class less its occupancy, which is right for
// probabilities that add up to one. Its kernel has no derivatives.
Tensor differentiable_gradient(
    const Tensor& g, const Operands& call, const Tensor& losses, const Tensor& log_alpha) {
  const Tensor& log_probs = call[0];
  if (log_probs.sym_numel() == 0) {
    return log_probs * g.unsqueeze(-1);
  }
  const Paths paths(
      log_probs,
      call[1],
      lengths_of(call.arg(2), log_probs),
      lengths_of(call.arg(3), log_probs),
      log_alpha.size(-1),
      call.integer(4));
  const Tensor is_impossible = (losses == INFINITY).unsqueeze(-1);
  const Tensor slope = (log_probs.exp() - paths.occupancy()) * g.unsqueeze(-1);
  const Tensor possible = slope.masked_fill(is_impossible, call.flag(5) ? 0 : NAN);
  return possible.masked_fill(paths.has_ended(), 0);
}

// _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) -> (losses,
// log_alpha), where the lengths are numbers or tensors, and log_probs is (time, sample, class).
Tensor ctc_gradient(
    const Tensor& g, const Operands& call, const Tensor& losses, const Tensor& log_alpha) {
  if (is_differentiated_below({g, call[0]})) {
    return differentiable_gradient(g, call, losses, log_alpha);
  }
  if (call.arg(2).isTensor()) {
    return at::_ctc_loss_backward(
        g, call[0], call[1], call[2], call[3], losses, log_alpha, call.integer(4), call.flag(5));
  }
  return at::_ctc_loss_backward(
      g,
      call[0],
      call[1],
      call.integers(2),
      call.integers(3),
      losses,
      log_alpha,
      call.integer(4),
      call.flag(5));
}

// Each loss depends only on its own log_probs.
void ctc_loss(JvpCall& call) {
  call.run();
  const Tensor& losses = call.result(0);
  const Tensor gradient = ctc_gradient(at::ones_like(losses), call, losses, call.result(1));
  call.set_tangent(0, (gradient * call.tangent(0)).sum(at::IntArrayRef{0, -1}));
}

} // namespace

// Numbers one by one: a tensor made from a list has its memory written, which fake ones lack.
Tensor lengths_of(const c10::IValue& lengths, const Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  if (lengths.isTensor()) {
    return lengths.toTensor().to(options);
  }
  std::vector<Tensor> each;
  for (const int64_t length : lengths.toIntVector()) {
    each.push_back(at::full({1}, length, options));
  }
  return each.empty() ? at::empty({0}, options) : at::cat(each);
}

void add_ctc(Table& rules) {
  for (const char* name : {"_ctc_loss", "_ctc_loss.Tensor"}) {
    rules[name].jvp(ctc_loss).vjp(VJP(0, ctc_gradient(g, c, y, c.result(1))));
  }
}

} // namespace torchlayers
