// jvp. What an operator does to tangents is read from its rule, on the values of the
// layers below; an operator without a rule goes through torch's forward AD.
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/args.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/layer.h"
#include "core/stack.h"
#include "core/trace.h"
#include "layers/decompose.h"
#include "rules/rule.h"
#include "values/plain.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::DynamicLayer;
using at::functorch::TransformType;

// What torch says where a derivative formula is missing.
bool is_missing_formula(const c10::NotImplementedError& error) {
  const std::string text = error.what_without_backtrace();
  return text.find("Trying to use forward AD with") != std::string::npos;
}

// What the arguments ask of the layer.
struct AskedOfJvp {
  Tangents tangents;
  bool any_tangent = false;
  // Somebody differentiates in reverse at this level, which is autograd's to record.
  bool is_recorded = false;
  // Sparse and nested tensors are torch's to differentiate.
  bool is_strided = true;

  AskedOfJvp(const Args& args, size_t count, const Layer& layer) {
    tangents.reserve(count);
    visit_tensors(args, count, [&](const at::Tensor& tensor) {
      const auto* wrapper = wrapper_of(tensor);
      const bool is_dead =
          wrapper != nullptr && !is_of_layer(*wrapper, layer) && !wrapper->is_alive();
      look_at(is_dead ? without_dead_wrappers(tensor) : tensor, layer);
    });
  }

 private:
  void look_at(const at::Tensor& tensor, const Layer& layer) {
    tangents.emplace_back();
    if (is_at_level(tensor, layer)) {
      is_recorded = is_recorded || tensor.requires_grad();
      tangents.back() = tangent_of(tensor, layer.level());
      any_tangent = any_tangent || tangents.back().defined();
    }
    is_strided = is_strided && tensor.layout() == at::kStrided && !tensor.is_nested();
  }
};

bool any_result_has_derivatives(const Args& results, size_t count) {
  bool any = false;
  visit_tensors(results, count, [&](const at::Tensor& result) {
    any = any || result.is_floating_point() || result.is_complex();
  });
  return any;
}

void unwrap_all(const Operator& op, Args& args, int64_t level) {
  change_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t) {
    return unwrap(without_dead_wrappers(tensor), level);
  });
}

bool are_plain(const Tangents& tangents) {
  return std::all_of(tangents.begin(), tangents.end(), [](const at::Tensor& tangent) {
    return !tangent.defined() || is_plain(tangent);
  });
}

bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor& holder = holder_of(one);
  const at::Tensor& other_holder = holder_of(other);
  return holder.has_storage() && other_holder.has_storage() &&
         holder.storage().is_alias_of(other_holder.storage());
}

// Copies, among the arguments and their tangents, of what is about to be written to: the rule
// and the layers below have to know what was there before.
void keep(Args& args, Tangents& tangents, size_t count) {
  const at::Tensor target = args[args.size() - count].toTensor();
  const at::Tensor tangent_of_target = tangents[0];
  auto tangent = tangents.begin();
  change_tensors(args, count, [&](const at::Tensor& tensor, size_t) {
    if (tangent->defined() && tangent_of_target.defined() &&
        share_memory(*tangent, tangent_of_target)) {
      *tangent = tangent->clone();
    }
    ++tangent;
    return tensor.is_same(target) || share_memory(tensor, target) ? tensor.clone() : tensor;
  });
}

// torch's prims run below autograd, and lose tangents without a word.
bool is_prim(const Operator& op) {
  return op.is_custom && op.schema().getNamespace() == "prims";
}

// Where torch has no formula: what the operator is made of comes to the front, as if the
// user had called it.
void decompose_or_refuse(const Operator& op, Args& args, const Layer& layer) {
  thread_keys() = Processing::of(layer)->keys_outside();
  if ((!op.written_args.empty() && !is_prim(op)) || !decompose(op, args)) {
    raise_not_implemented(
        layer.name(),
        " can't differentiate ",
        op.name(),
        ": torch has neither a forward-mode formula nor a decomposition for it. Give it a rule "
        "with torchlayers.extend.jvp_rule, or use reverse mode (vjp, jacrev).");
  }
}

} // namespace

bool (*decompose)(const Operator&, Args&) = [](const Operator&, Args&) { return false; };

JvpLayer::JvpLayer(bool previous_forward_grad_mode, bool previous_inference_mode)
    : AutogradLayer(Kind::Jvp),
      previous_forward_grad_mode_(previous_forward_grad_mode),
      previous_inference_mode_(previous_inference_mode) {}

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

// An operator made of others has no rule as a rule, and they do.
bool JvpLayer::decomposes(const Operator& op) const {
  return op.is_composite && op.rule == nullptr;
}

void JvpLayer::process(const Operator& op, Args& args) {
  const bool may_follow = Modes::of_thread().forward_grad && !c10::InferenceMode::is_enabled() &&
                          (!op.is_custom || op.rule != nullptr);
  const bool writes = !op.written_args.empty();
  const JvpRule* rule = op.rule;
  if (writes) {
    rule = op.functional ? Operator::of(*op.functional).rule.load() : nullptr;
  }
  if (!may_follow || (op.aliases && rule == nullptr)) {
    leave_to_autograd(op, args);
    return;
  }
  AskedOfJvp asked(args, op.num_args, *this);
  if (asked.is_recorded) {
    leave_to_autograd(op, args);
  } else if (!asked.any_tangent && !op.aliases) {
    send_down(op, args); // nothing to differentiate
  } else if (!asked.any_tangent || rule == nullptr || !asked.is_strided) {
    leave_to_autograd(op, args);
  } else if (writes) {
    follow_in_place(*rule, op, args, asked.tangents);
  } else {
    follow(*rule, op, args, asked.tangents);
  }
}

void JvpLayer::follow(const JvpRule& rule, const Operator& op, Args& args, Tangents& tangents) {
  trace("rule", op, *this);
  const at::Tensor base =
      op.aliases ? without_dead_wrappers(args[args.size() - op.num_args].toTensor()) : at::Tensor();
  unwrap_all(op, args, level());
  JvpCall call(op, args, tangents);
  Tangents results;
  {
    WithoutTop below(*this);
    WithModes modes(modes_below_caller(op));
    SkipAutograd past(
        !rule.is_from_python() && SkipAutograd::may_go(op, args) && are_plain(tangents));
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

// What is written to a dual tensor is written to its tangent too, whose views are views of
// it; a tensor that has none yet, and what it is a view of, is given one.
void JvpLayer::follow_in_place(
    const JvpRule& rule, const Operator& op, Args& args, Tangents& tangents) {
  refuse_to_mutate_captured(op, args);
  trace("rule", op, *this);
  const at::Tensor target = args[args.size() - op.num_args].toTensor();
  unwrap_all(op, args, level());
  const at::Tensor written = tangents[0];
  at::Tensor tangent;
  {
    WithoutTop below(*this);
    WithModes modes(modes_below_caller(op));
    Args kept(args.end() - static_cast<std::ptrdiff_t>(op.num_args), args.end());
    const at::Tensor value = kept[0].toTensor();
    keep(kept, tangents, op.num_args);
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
  wrapper_of(target)->refreshMetadata();
  args.resize(args.size() - op.num_args);
  args.emplace_back(target);
}

// A derivative that is registered from Python (torch.library's register_autograd) is of
// reverse mode alone, and does not say so in forward mode: the tangent would be zero.
void JvpLayer::leave_to_autograd(const Operator& op, Args& args) {
  if (is_prim(op) && AskedOfJvp(args, op.num_args, *this).any_tangent) {
    decompose_or_refuse(op, args, *this);
    return;
  }
  const bool may_lose_tangents =
      op.has_custom_autograd && AskedOfJvp(args, op.num_args, *this).any_tangent;
  const size_t start = args.size() - op.num_args;
  const Args kept(args.begin() + static_cast<std::ptrdiff_t>(start), args.end());
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
  if (may_lose_tangents && !AskedOfJvp(args, op.num_returns, *this).any_tangent &&
      any_result_has_derivatives(args, op.num_returns)) {
    raise(
        name(),
        " can't differentiate ",
        op.name(),
        ": its derivative is for reverse mode alone, and its tangent would be lost. Give it a rule "
        "with torchlayers.extend.jvp_rule, or use reverse mode (vjp, jacrev).");
  }
}

} // namespace torchlayers
