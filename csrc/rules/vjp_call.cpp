#include "rules/vjp_call.h"

#include <ATen/ExpandUtils.h>

#include "core/aten_functions.h"

namespace torchlayers {

const Target& VjpCall::target(size_t arg) const {
  for (const Target& target : targets_) {
    if (target.arg == arg) {
      return target;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "no gradient with respect to argument ", arg, " of ", op_.name());
}

bool VjpCall::wants(size_t arg) const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i].arg == arg && is_wanted_(i)) {
      return true;
    }
  }
  return false;
}

bool VjpCall::wants(size_t arg, size_t member) const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i].arg == arg && targets_[i].member == member) {
      return is_wanted_(i);
    }
  }
  return false;
}

// A gradient gets its argument's size, dtype and device: dimensions that were broadcast are summed.
void VjpCall::give(size_t arg, at::Tensor gradient, size_t member) {
  if (!gradient.defined()) {
    return;
  }
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = targets_[i];
    if (target.arg != arg || target.member != member || !is_wanted_(i)) {
      continue;
    }
    if (is_symbolic(gradient)) { // fitted in the graph (graph/gradients/lines.cpp)
      gradients_[i] = std::move(gradient);
      return;
    }
    if (gradient.is_complex() && !c10::isComplexType(target.dtype)) {
      gradient = at::real(gradient);
    }
    if (gradient.sym_sizes() != c10::SymIntArrayRef(target.sizes)) {
      gradient = at::sum_to(std::move(gradient), c10::SymIntArrayRef(target.sizes));
    }
    if (gradient.scalar_type() != target.dtype) {
      gradient = gradient.to(target.dtype);
    }
    if (target.sizes.empty() && gradient.device() != target.device) {
      gradient = gradient.to(target.device); // a scalar among tensors of another device
    }
    gradients_[i] = std::move(gradient);
    return;
  }
}

void VjpRule::know(size_t arg, const Reads& reads) {
  TORCH_INTERNAL_ASSERT(arg < known_.size());
  known_.set(arg);
  if (reads_.size() <= arg) {
    reads_.resize(arg + 1);
  }
  reads_[arg] = reads;
}

ByArgument::ByArgument(std::vector<Vjp> vjps) : vjps_(std::move(vjps)) {
  for (const Vjp& vjp : vjps_) {
    know(vjp.arg, vjp.reads);
  }
}

void ByArgument::vjp(VjpCall& call) const {
  for (const Vjp& vjp : vjps_) {
    if (call.wants(vjp.arg)) {
      call.give(vjp.arg, vjp(call.cotangents()[0], call));
    }
  }
}

AtOnce::AtOnce(
    const std::bitset<64>& args,
    const std::bitset<64>& results,
    const Reads& reads,
    void (*vjp)(VjpCall&))
    : vjp_(vjp) {
  for (size_t arg = 0; arg < args.size(); ++arg) {
    if (args[arg]) {
      know(arg, reads);
    }
  }
  results_ = results;
}

} // namespace torchlayers
