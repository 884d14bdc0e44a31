// The rule of an operator says how it transforms tangents, as values of the layers below; an
// operator without a rule goes through torch's forward AD.
#include "layers/jvp.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/args.h"
#include "core/below.h"
#include "core/callbacks.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "values/local_storages.h"
#include "values/tangent.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::DynamicLayer;
using at::functorch::TransformType;

// Whether torch reports a missing derivative formula.
bool is_missing_formula(const c10::NotImplementedError& error) {
  const std::string text = error.what_without_backtrace();
  return text.find("Trying to use forward AD with") != std::string::npos;
}

bool are_plain(const Tangents& tangents) {
  return std::ranges::all_of(
      tangents, [](const at::Tensor& tangent) { return !tangent.defined() || is_plain(tangent); });
}

// Copies, among the arguments and their tangents, those that are about to be written to: the rule
// and the layers below need the values from before.
void keep(Args& args, Tangents& tangents, size_t count, const Layer& layer) {
  const at::Tensor target = peek(args, 0, count).toTensor();
  const at::Tensor tangent_of_target = tangents[0];
  auto tangent = tangents.begin();
  change_tensors(args, count, [&](const at::Tensor& tensor, size_t) {
    if (tangent->defined() && tangent_of_target.defined() &&
        share_memory(*tangent, tangent_of_target, layer)) {
      *tangent = tangent->clone();
    }
    ++tangent;
    return tensor.is_same(target) || share_memory(tensor, target, layer) ? tensor.clone() : tensor;
  });
}

// torch's prims run below autograd, and silently lose tangents.
bool is_prim(const Operator& op) {
  return op.is_custom && op.schema().getNamespace() == "prims";
}

// Where torch has no formula: the operators of a decomposition reach the front as if the user had
// called them.
void decompose_or_refuse(const Operator& op, Args& args, const Layer& layer) {
  thread_keys() = Processing::of(layer)->keys_outside();
  if ((!op.written_args.empty() && !is_prim(op)) || !callbacks.decompose(op, args)) {
    raise_not_implemented(
        "{} can't differentiate {}: torch has neither a forward-mode formula nor a decomposition "
        "for it. Register a rule with torchlayers.extend.jvp_rule, or use reverse mode (vjp, "
        "jacrev).",
        layer.name(),
        op.name());
  }
}

} // namespace

void JvpLayer::switch_on() {
  callbacks.hold_dual_level();
  previous_forward_grad_mode_ = Modes::of_thread().forward_grad;
  without_inference(no_inference_);
  c10::AutogradState::get_tls_state().set_fw_grad_mode(true);
}

void JvpLayer::switch_off() {
  no_inference_.reset();
  callbacks.release_dual_level();
}

void JvpLayer::resume() {
  callbacks.hold_dual_level();
}

void JvpLayer::suspend() {
  callbacks.release_dual_level();
}

DynamicLayer JvpLayer::mirrored(int64_t level) const {
  return DynamicLayer(
      TransformType::Jvp,
      level,
      std::nullopt,
      std::nullopt,
      std::nullopt,
      previous_forward_grad_mode_);
}

Modes JvpLayer::modes_below(Modes here) const {
  return {here.grad, here.forward_grad && previous_forward_grad_mode_};
}

// A composite operator usually has no rule, but its parts do.
bool JvpLayer::decomposes(const Operator& op) const {
  return op.is_composite && op.jvp_rule == nullptr;
}

JvpLayer::Recorder JvpLayer::recorder_of(
    const Operator& op, const JvpRule* rule, const ArgumentFacts& facts) {
  const bool may_have_rule =
      rule != nullptr ? !op.is_custom || op.jvp_rule != nullptr : !op.aliases && !op.is_custom;
  if (!may_have_rule || facts.requiring_grad.any() || c10::InferenceMode::is_enabled()) {
    return Recorder::Autograd;
  }
  if (!facts.any_tangent || !Modes::of_thread().forward_grad) {
    return op.aliases ? Recorder::Autograd : Recorder::Nobody;
  }
  return rule != nullptr ? Recorder::Rule : Recorder::Autograd;
}

void JvpLayer::process(const Operator& op, Args& args) {
  const bool writes = !op.written_args.empty();
  const JvpRule* rule = op.jvp_rule;
  if (writes) {
    rule = op.functional ? Operator::of(*op.functional).jvp_rule.load() : nullptr;
  }
  Tangents tangents;
  ArgumentFacts facts = look_at(args, op.num_args, &tangents);
  if (writes && facts.any_tangent && own_written_tangents(op, args)) {
    tangents.clear();
    facts = look_at(args, op.num_args, &tangents);
  }
  switch (recorder_of(op, rule, facts)) {
    case Recorder::Nobody:
      send_down(op, args);
      break;
    case Recorder::Rule:
      writes ? apply_rule_in_place(*rule, op, args, tangents)
             : apply_rule(*rule, op, args, tangents);
      break;
    case Recorder::Autograd:
      leave_to_autograd(op, args, facts.any_tangent);
      break;
  }
}

// NOTE [Borrowed tangents]
bool JvpLayer::own_written_tangents(const Operator& op, const Args& args) {
  Tangents targets;
  for (const size_t i : op.written_args) {
    visit_tensors_of(peek(args, i, op.num_args), [&](const at::Tensor& given) {
      const at::Tensor target = without_dead_wrappers(given);
      if (is_at_level(target, *this) && writes_to_borrowed(target)) {
        targets.push_back(target);
      }
    });
  }
  if (targets.empty()) {
    return false;
  }
  const Below below(*this, op);
  for (const at::Tensor& target : targets) {
    if (writes_to_borrowed(target)) { // several may be views of one argument
      own_tangent(target, level());
    }
  }
  return true;
}

void JvpLayer::apply_rule(
    const JvpRule& rule, const Operator& op, Args& args, const Tangents& tangents) {
  trace("rule", op, *this);
  const at::Tensor base =
      op.aliases ? without_dead_wrappers(peek(args, 0, op.num_args).toTensor()) : at::Tensor();
  const bool values_are_plain = unwrap_args(op, args);
  JvpCall call(op, args, tangents);
  Tangents results;
  {
    Below below(*this, op);
    below.skip_autograd(op, values_are_plain && !rule.is_from_python() && are_plain(tangents));
    rule.jvp(call);
    results = call.finish();
  }
  auto tangent = results.begin();
  change_tensors(args, op.num_returns, [&](const at::Tensor& value, size_t) {
    const at::Tensor result = wrap(value, *this, /*is_immutable=*/false);
    if (base.defined()) {
      become_view_of(base, result, std::move(*tangent));
    } else if (tangent->defined()) {
      give_tangent(result, std::move(*tangent));
    }
    ++tangent;
    return result;
  });
}

// A write to a dual tensor is a write to its tangent too, and views of the tensor have views of its
// tangent; a tensor without a tangent is given one, and so is its base.
void JvpLayer::apply_rule_in_place(
    const JvpRule& rule, const Operator& op, Args& args, Tangents& tangents) {
  refuse_to_mutate_captured(op, args);
  trace("rule", op, *this);
  const at::Tensor target = peek(args, 0, op.num_args).toTensor();
  unwrap_args(op, args);
  const at::Tensor written = tangents[0];
  at::Tensor tangent;
  {
    const Below below(*this, op);
    Args kept = last(args, op.num_args).vec();
    const at::Tensor value = kept[0].toTensor();
    keep(kept, tangents, op.num_args, *this);
    JvpCall call(Operator::of(*op.functional), kept, tangents);
    call.write_to(op, value);
    rule.jvp(call);
    if (!written.defined()) {
      tangent = call.finish()[0];
    } else if (const at::Tensor given = call.given(0); given.defined()) {
      written.copy_(given);
    } else {
      written.zero_();
    }
  }
  if (!written.defined() && tangent.defined()) {
    const at::Tensor wrapped = wrap(tangent, *this, /*is_immutable=*/false);
    allow_only(kAutogradLayerKeys);
    target._set_fw_grad(wrapped, kDualLevel, /*is_inplace_op=*/true);
  }
  torch::autograd::impl::bump_version(target);
  refresh(*wrapper_of(target));
  drop(args, op.num_args);
  args.emplace_back(target);
}

// A derivative that is registered from Python (torch.library's register_autograd) is for reverse
// mode only, and does not report that in forward mode: the tangent would be zero.
void JvpLayer::leave_to_autograd(const Operator& op, Args& args, bool any_tangent) {
  if (any_tangent && is_prim(op)) {
    decompose_or_refuse(op, args, *this);
    return;
  }
  const size_t start = args.size() - op.num_args;
  const Args kept = last(args, op.num_args).vec();
  visit_tensors(args, op.num_args, [](const at::Tensor& tensor) {
    tensor._fw_grad(kDualLevel); // so that torch's kernels find it. NOTE [Tangents of rules]
  });
  try {
    AutogradLayer::process(op, args);
  } catch (const c10::NotImplementedError& error) {
    if (!is_missing_formula(error)) {
      throw;
    }
    args.resize(start);
    args.insert(args.end(), kept.begin(), kept.end());
    decompose_or_refuse(op, args, *this);
    return;
  }
  if (any_tangent && op.aliases) {
    visit_tensors(args, op.num_returns, [](const at::Tensor& result) { note_view(result); });
  }
  Tangents of_results;
  if (any_tangent && op.has_custom_autograd &&
      !look_at(args, op.num_returns, &of_results).any_tangent &&
      any_tensor(args, op.num_returns, &is_differentiable)) {
    raise(
        "{} can't differentiate {}: its derivative is registered for reverse mode only, and the "
        "tangent would be lost. Register a rule with torchlayers.extend.jvp_rule, or use reverse "
        "mode (vjp, jacrev).",
        name(),
        op.name());
  }
}

} // namespace torchlayers
