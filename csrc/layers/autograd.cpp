#include "layers/autograd.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/args.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/trace/trace.h"
#include "layers/custom_function.h"
#include "values/tangent.h"
#include "values/value_inside.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

bool holds_none(const c10::IValue& value) {
  if (!value.isList()) {
    return false;
  }
  const auto members = value.toListRef();
  return std::any_of(
      members.begin(), members.end(), [](const c10::IValue& member) { return member.isNone(); });
}

bool is_ours_to_write(const at::Tensor& tensor, int64_t level) {
  const auto* wrapper = wrapper_of(tensor);
  return wrapper != nullptr && wrapper->level() == level && !wrapper->is_immutable();
}

using Targets = c10::SmallVector<at::Tensor, 2>;

// The tensors that the operator writes to.
Targets written_among(const Operator& op, const Args& args) {
  Targets targets;
  for (const size_t i : op.written_args) {
    visit_tensors_of(
        peek(args, i, op.num_args), [&](const at::Tensor& target) { targets.push_back(target); });
  }
  return targets;
}

[[noreturn]] void raise_mutates_captured(const Operator& op, const Layer& layer) {
  raise_as(
      ErrorClass::InPlace,
      "{} can't let the in-place operator {} mutate a captured tensor: its gradient would be "
      "silently wrong. Pass the tensor to the function as an argument, or use the out-of-place "
      "operator. (BatchNorm updates its statistics so: see "
      "torchlayers.replace_all_batch_norm_modules_.)",
      layer.name(),
      op.name());
}

// Rewords autograd's error for a write to a tensor that a level differentiates, or to a view of it.
void explain_write(const c10::Error& error, const Operator& op, const Layer& layer) {
  const std::string& text = error.msg();
  if (text.find("leaf Variable that requires grad") == std::string::npos ||
      text.find("torchlayers: ") != std::string::npos) {
    return;
  }
  raise_as(
      ErrorClass::InPlace,
      "{} can't let {} write to a tensor that it differentiates with respect to: the derivative is "
      "taken at the value that the function was called with ({}) Write to a copy (x = x.clone()), "
      "or use the out-of-place operator.",
      layer.name(),
      op.name(),
      text);
}

// The written tensors that are not the transform's, after lifting. Some operators write statistics
// there, which have no derivatives (batch norm); others, on lists or custom ones, leave a
// derivative there that is never read.
Targets captured_among(const Operator& op, const Args& args, int64_t level) {
  Targets targets;
  for (const at::Tensor& target : written_among(op, args)) {
    if (!is_ours_to_write(target, level)) {
      targets.push_back(target);
    }
  }
  return targets;
}

// NOTE [Operators without a derivative]
// In a custom operator without a registered derivative, torch's autograd sees the operators that
// the kernel calls, and differentiates those. So the layer runs a kernel that is made for any
// backend at the front, and the operators it calls reach the layer one by one. A backend's own
// kernel might read memory, and is not run that way: if a derivative is lost in it, that is an
// error. Nor do derivatives that torch.library registers reach tensors of a list that holds None.
bool may_lose_derivatives(const Operator& op, const Args& args, const Layer& layer) {
  if (!op.lacks_autograd && !op.has_custom_autograd && !op.lacks_derivative) {
    return false;
  }
  bool any = false;
  bool any_reached = false;
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t i) {
    const bool is_followed = layer.follows(without_dead_wrappers(tensor));
    any = any || is_followed;
    any_reached = any_reached || (is_followed && op.has_custom_autograd &&
                                  !holds_none(peek(args, i, op.num_args)));
  });
  return any && !any_reached;
}

bool is_made_for_any_backend(const Operator& op) {
  return op.lacks_autograd &&
         (op.handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
          op.handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional));
}

bool has_lost_derivatives(const Operator& op, const Args& results, const Layer& layer) {
  const bool may_have =
      !op.written_args.empty() || any_tensor(results, op.num_returns, &is_differentiable);
  const auto follows = [&](const at::Tensor& result) { return layer.follows(result); };
  return may_have && (op.lacks_autograd || !any_tensor(results, op.num_returns, follows));
}

// The results that share memory with a tensor from outside the transform, and so
// are immutable too.
c10::SmallVector<size_t, 2> results_of_immutable(
    const Operator& op, const Args& args, int64_t level) {
  c10::SmallVector<size_t, 2> results;
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t i) {
    if (op.aliased_result[i] && !is_ours_to_write(tensor, level)) {
      results.push_back(*op.aliased_result[i]);
    }
  });
  return results;
}

} // namespace

ArgumentFacts AutogradLayer::look_at(const Args& args, size_t count, Tangents* tangents) const {
  ArgumentFacts facts;
  const auto look_at = [&](const at::Tensor& tensor, size_t i) {
    facts.are_strided = facts.are_strided && is_strided(tensor);
    if (tangents != nullptr) {
      tangents->emplace_back();
    }
    if (!is_at_level(tensor, *this)) {
      return;
    }
    facts.any_at_level = true;
    facts.requiring_grad[i] = facts.requiring_grad[i] || tensor.requires_grad();
    if (tangents != nullptr) {
      tangents->back() = tangent_of(tensor, level());
      facts.any_tangent = facts.any_tangent || tangents->back().defined();
    } else {
      const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
      facts.any_tangent = facts.any_tangent || (meta != nullptr && meta->fw_grad_ != nullptr);
    }
  };
  visit_tensors(args, count, [&](const at::Tensor& tensor, size_t i) {
    const auto* wrapper = wrapper_of(tensor);
    if (wrapper != nullptr && !is_of_layer(*wrapper, *this) && !wrapper->is_alive()) {
      facts.any_dead_wrapper = true;
      look_at(without_dead_wrappers(tensor), i);
    } else {
      look_at(tensor, i);
    }
  });
  return facts;
}

void AutogradLayer::lift_args(const Operator& op, Args& args) const {
  change_tensors(
      args, op.num_args, [this](const at::Tensor& tensor, size_t) { return lift(tensor, *this); });
}

bool AutogradLayer::unwrap_args(const Operator& op, Args& args) const {
  bool are_plain = true;
  change_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t) {
    at::Tensor value = unwrap(tensor, level());
    are_plain = are_plain && is_plain(value);
    return value;
  });
  return are_plain;
}

bool AutogradLayer::follows(const at::Tensor& tensor) const {
  const auto* wrapper = wrapper_of(tensor);
  return wrapper != nullptr && is_of_layer(*wrapper, *this) &&
         ((tensor.requires_grad() && at::GradMode::is_enabled()) ||
          tangent_of(tensor, level()).defined());
}

void AutogradLayer::refuse_to_mutate_captured(const Operator& op, Args& args) const {
  take_off_dead_wrappers(op, args);
  const at::Tensor& target = peek(args, 0, op.num_args).toTensor();
  if (!target.defined() || is_ours_to_write(target, level())) {
    return;
  }
  check_not_escaped(target, *this);
  raise_mutates_captured(op, *this);
}

// A custom operator's autograd kernel, an autograd.Function, has turned recording off for its own
// level, not for those below.
Modes AutogradLayer::modes_of_caller(const Operator& op, Modes here) const {
  Modes modes = op.is_custom ? Processing::of(*this)->modes_outside() : here;
  if (const auto* function = FunctionsOfOneLevel::running_jvp_on(*this)) {
    modes.forward_grad = function->modes_outside().forward_grad;
  }
  return modes;
}

void AutogradLayer::process(const Operator& op, Args& args) {
  const bool may_lose = may_lose_derivatives(op, args, *this);
  if (may_lose && op.is_collective && callbacks.decompose(op, args)) {
    return;
  }
  if (may_lose && is_made_for_any_backend(op)) {
    op.handle.redispatchBoxed(DispatchKeySet(), &args);
    return;
  }
  if (op.is_in_place) {
    refuse_to_mutate_captured(op, args);
  }
  lift_args(op, args);
  const Targets captured = op.is_in_place ? Targets() : captured_among(op, args, level());
  trace("torch", op, *this);
  allow_only(kAutogradLayerKeys);
  if (any_saved_hooks()) {
    callbacks.adopt_saved_hooks();
  }
  std::optional<FunctionsOfOneLevel> allowed;
  if (op.is_custom) {
    allowed.emplace();
  }
  try {
    op.handle.callBoxed(&args);
  } catch (const c10::Error& error) {
    explain_write(error, op, *this);
    throw;
  }
  if (op.detaches_in_place) {
    detach_value_inside(peek(args, 0, op.num_returns).toTensor(), *this, op);
  }
  for (const at::Tensor& target : captured) {
    if (follows(target)) {
      raise_mutates_captured(op, *this);
    }
  }
  if (may_lose && has_lost_derivatives(op, args, *this)) {
    if (op.lacks_derivative) {
      raise_not_implemented(
          "{} can't differentiate {}: torch has no derivative of it, and it would silently be "
          "zero. "
          "Call it in an autograd.Function whose backward has one, or detach() the arguments if "
          "zero is intended.",
          name(),
          op.name());
    }
    raise_not_implemented(
        "{} can't differentiate {}: no derivative is registered for these arguments, so it would "
        "silently be zero. Register one with torch.library.register_autograd{}, or detach() the "
        "arguments if zero is intended.",
        name(),
        op.name(),
        where_to_register());
  }
}

// Sends the operator down, in six steps.
void AutogradLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  // 1. Which results will share memory with something outside the transform.
  // NOTE [Results that are always wrapped]: nothing else holds the tensor that lift_fresh returns,
  // and composite operators use alias to return a new tensor.
  c10::SmallVector<size_t, 2> immutable;
  if (op.aliases && !op.always_wraps) {
    immutable = results_of_immutable(op, args, level());
  }
  // 2. Save the arguments whose sizes the operator may change.
  const Targets written = written_among(op, args);
  // 3. Unwrap.
  const bool are_plain = unwrap_args(op, args);
  // 4. Call the operator on the layers below.
  call_below(op, args, are_plain);
  // 5. Wrap the results.
  change_tensors(args, op.num_returns, [&](const at::Tensor& tensor, size_t i) {
    return wrap(tensor, *this, std::find(immutable.begin(), immutable.end(), i) != immutable.end());
  });
  // 6. Update the wrappers' sizes from their values.
  for (const at::Tensor& tensor : written) {
    if (auto* wrapper = wrapper_of(tensor)) {
      refresh(*wrapper);
    }
  }
}

} // namespace torchlayers
