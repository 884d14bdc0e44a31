// What grad and jvp share: torch's autograd works on wrappers of their level; the values inside
// the wrappers belong to the layers below.
#include <c10/util/SmallVector.h>

#include "../args.h"
#include "../errors.h"
#include "../function.h"
#include "../keys.h"
#include "../layer.h"
#include "../plain.h"
#include "../stack.h"
#include "../trace.h"
#include "../wrapper.h"

namespace torchlayers {
namespace {

// The results that share memory with a tensor from outside the transform, and so
// are immutable too.
c10::SmallVector<size_t, 2> results_of_immutable(
    const Operator& op, const Args& args, int64_t level) {
  c10::SmallVector<size_t, 2> results;
  const size_t first = args.size() - op.num_args;
  for (size_t i = 0; i < op.num_args; ++i) {
    if (!op.aliased_result[i] || !args[first + i].isTensor()) {
      continue;
    }
    const at::Tensor& tensor = args[first + i].toTensor();
    if (!tensor.defined()) {
      continue;
    }
    auto* wrapper = wrapper_of(tensor);
    if (!wrapper || wrapper->level() != level || wrapper->is_immutable()) {
      results.push_back(*op.aliased_result[i]);
    }
  }
  return results;
}

} // namespace

void AutogradLayer::lift(const Operator& op, Args& args) const {
  change_tensors(args, op.num_args, [this](const at::Tensor& tensor, size_t) {
    return torchlayers::lift(tensor, *this);
  });
}

void AutogradLayer::refuse_to_mutate_captured(const Operator& op, const Args& args) const {
  const at::Tensor& target = args[args.size() - op.num_args].toTensor();
  if (!target.defined()) {
    return;
  }
  auto* wrapper = wrapper_of(target);
  if (wrapper && wrapper->level() == level() && !wrapper->is_immutable()) {
    return;
  }
  check_not_escaped(target, *this);
  raise(
      name(),
      " can't let the in-place operator ",
      op.name(),
      " mutate a captured tensor: its gradient would be silently wrong. Pass the tensor to the "
      "function as an argument, or use the out-of-place operator. (BatchNorm updates its "
      "statistics "
      "so: see torchlayers.replace_all_batch_norm_modules_.)");
}

// Of the modes that the operator was called with. A custom operator's own autograd kernel,
// an autograd.Function, has turned recording off for its level, not for those below.
Modes AutogradLayer::modes_below_caller(const Operator& op) const {
  Modes modes = op.is_custom ? Processing::of(*this)->modes_outside() : Modes::of_thread();
  if (const auto* function = FunctionsOfOneLevel::running_jvp_on(*this)) {
    modes.forward_grad = function->modes_outside().forward_grad;
  }
  return modes_below(modes);
}

void AutogradLayer::process(const Operator& op, Args& args) {
  if (op.is_in_place) {
    refuse_to_mutate_captured(op, args);
  }
  lift(op, args);
  allow_only(kAutogradLayerKeys);
  std::optional<FunctionsOfOneLevel> allowed;
  if (op.is_custom) {
    allowed.emplace();
  }
  op.handle.callBoxed(&args);
}

// Sending down, in six steps.
void AutogradLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  // 1. Which results will share memory with something outside the transform.
  // NOTE [Results that are always wrapped]: lift_fresh returns a tensor that no
  // one else holds, and alias stands where a composite operator means a new tensor.
  c10::SmallVector<size_t, 2> immutable;
  if (op.aliases && !op.always_wraps) {
    immutable = results_of_immutable(op, args, level());
  }
  // 2. Keep the arguments whose sizes the operator may change.
  c10::SmallVector<at::Tensor, 2> written;
  for (size_t i : op.written_args) {
    const auto& value = args[args.size() - op.num_args + i];
    if (value.isTensor() && value.toTensor().defined()) {
      written.push_back(value.toTensor());
    }
  }
  // 3. Unwrap.
  change_tensors(args, op.num_args, [this](const at::Tensor& tensor, size_t) {
    return unwrap(tensor, level());
  });
  // 4. Call the operator on the layers below.
  {
    WithoutTop below(*this);
    WithModes modes(modes_below_caller(op));
    PastAutograd past(PastAutograd::may_go(op, args));
    op.handle.callBoxed(&args);
  }
  // 5. Wrap the results.
  change_tensors(args, op.num_returns, [&](const at::Tensor& tensor, size_t i) {
    return wrap(tensor, *this, std::find(immutable.begin(), immutable.end(), i) != immutable.end());
  });
  // 6. Let the wrappers know their values' new sizes.
  for (const at::Tensor& tensor : written) {
    if (auto* wrapper = wrapper_of(tensor)) {
      wrapper->refreshMetadata();
    }
  }
}

} // namespace torchlayers
