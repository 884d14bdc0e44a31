// Losses: the mean or sum is over each sample's own elements.
#include <ATen/core/Reduction.h>

#include <numeric>

#include "core/aten_functions.h"
#include "rules/batching/families.h"

namespace torchlayers {
namespace {

using at::Tensor;

// Reduces one loss per element, (B, ...), to one per sample.
Tensor reduced(const Tensor& losses, int64_t reduction) {
  if (reduction == at::Reduction::None || losses.dim() == 1) {
    return losses;
  }
  std::vector<int64_t> dims(losses.dim() - 1);
  std::iota(dims.begin(), dims.end(), 1);
  return reduction == at::Reduction::Mean ? losses.mean(dims) : losses.sum(dims);
}

// Elementwise losses op(x, target, ..., reduction, ...) on tensors of one shape.
bool elementwise(BatchedCall& call, size_t reduction) {
  const Tensor& x = call.tensor(0);
  const Tensor& target = call.tensor(1);
  const bool fits = (call.is_batched(0) || call.is_batched(1)) &&
                    x.sym_sizes() == target.sym_sizes() && x.scalar_type() == target.scalar_type();
  if (!fits) {
    return false;
  }
  for (size_t i = 2; i < reduction; ++i) {
    if (call.has_tensor(i) && (call.is_batched(i) || call.rank(i) > x.dim())) {
      return false; // a weight, which broadcasts below
    }
  }
  return call.give([&] {
    // Some losses require x and target to have one shape.
    Args args = call.args_with([&](size_t i) { return i < 2 ? call.expanded(i) : call.value(i); });
    args[reduction] = static_cast<int64_t>(at::Reduction::None);
    return reduced(call.call(std::move(args)), call[reduction].toInt());
  });
}

// op(gradient, x, target, reduction) for these: there is one gradient, or one per element.
bool elementwise_backward(BatchedCall& call, size_t reduction) {
  const Tensor& x = call.tensor(1);
  const Tensor& target = call.tensor(2);
  const int64_t kind = call[reduction].toInt();
  const bool is_reduced = kind != at::Reduction::None;
  const bool fits =
      x.sym_sizes() == target.sym_sizes() && x.scalar_type() == target.scalar_type() &&
      x.scalar_type() == call.tensor(0).scalar_type() &&
      (is_reduced ? call.rank(0) == 0 : call.tensor(0).sym_sizes() == x.sym_sizes()) &&
      (call.is_batched(0) || call.is_batched(1) || call.is_batched(2));
  if (!fits) {
    return false;
  }
  return call.give([&] {
    Args args = call.args_with([&](size_t i) { return call.expanded(i); });
    if (is_reduced) {
      const Tensor gradient = call.expanded(0);
      args[0] = BatchedCall::raised(
                    kind == at::Reduction::Mean ? gradient / x.numel() : gradient, x.dim())
                    .expand_as(args[1].toTensor());
    }
    args[reduction] = static_cast<int64_t>(at::Reduction::None);
    return call.call(std::move(args));
  });
}

// Whether a sample is (C) classes and one target, or (N, C) and (N), without weights.
bool fits_classes(const BatchedCall& call, size_t x, size_t target, size_t weight) {
  return call.is_batched(x) && !call.has_tensor(weight) &&
         (call.rank(x) == 1 || call.rank(x) == 2) && call.rank(target) == call.rank(x) - 1;
}

// The number of targets of each sample that are not ignored.
Tensor counted(const Tensor& target, int64_t ignore_index, const Tensor& like) {
  const Tensor counts = (target != ignore_index).to(like.scalar_type());
  return counts.dim() == 1 ? counts : counts.sum(1);
}

// nll_loss_forward(x, target, weight, reduction, ignore_index) -> (loss, total weight)
bool nll_loss(BatchedCall& call, size_t) {
  if (!fits_classes(call, 0, 1, 2) || call[3].toInt() == at::Reduction::None) {
    return false;
  }
  return call.give([&] {
    const Tensor x = call.value(0);
    const Tensor target = call.expanded(1);
    const int64_t ignored = call[4].toInt();
    const bool has_rows = x.dim() == 3;
    const Tensor losses = std::get<0>(at::nll_loss_forward(
        has_rows ? x.flatten(0, 1) : x,
        has_rows ? target.flatten() : target,
        std::nullopt,
        at::Reduction::None,
        ignored));
    const Tensor total = counted(target, ignored, x);
    const Tensor sum =
        has_rows ? losses.unflatten_symint(0, {x.sym_size(0), x.sym_size(1)}).sum(1) : losses;
    const bool is_mean = call[3].toInt() == at::Reduction::Mean;
    return std::vector<Tensor>{is_mean ? sum / total : sum, total};
  });
}

// nll_loss_backward(gradient, x, target, weight, reduction, ignore_index, total weight)
bool nll_loss_backward(BatchedCall& call, size_t) {
  if (!fits_classes(call, 1, 2, 3) || call[4].toInt() == at::Reduction::None || call.rank(0) != 0) {
    return false;
  }
  return call.give([&] {
    const Tensor x = call.value(1);
    const Tensor target = call.expanded(2);
    const bool has_rows = x.dim() == 3;
    Tensor gradient = call.expanded(0);
    if (call[4].toInt() == at::Reduction::Mean) {
      gradient = gradient / call.expanded(6);
    }
    if (has_rows) {
      gradient = gradient.unsqueeze(1).expand_symint({x.sym_size(0), x.sym_size(1)}).flatten();
    }
    const Tensor result = at::nll_loss_backward(
        gradient,
        has_rows ? x.flatten(0, 1) : x,
        has_rows ? target.flatten() : target,
        std::nullopt,
        at::Reduction::None,
        call[5].toInt(),
        gradient.new_zeros({}));
    return has_rows ? result.unflatten_symint(0, {x.sym_size(0), x.sym_size(1)}) : result;
  });
}

} // namespace

void add_batched_losses(BatchingTable& rules) {
  rules.add({"mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"}, {elementwise, 2});
  rules.add(
      {"mse_loss_backward",
       "smooth_l1_loss_backward",
       "huber_loss_backward",
       "soft_margin_loss_backward"},
      {elementwise_backward, 3});
  rules.add({"binary_cross_entropy"}, {elementwise, 3});
  rules.add({"binary_cross_entropy_with_logits"}, {elementwise, 4});
  rules.add({"nll_loss_forward"}, {nll_loss});
  rules.add({"nll_loss_backward"}, {nll_loss_backward});
}

} // namespace torchlayers
