// The rule of an operator says how it transforms cotangents, in a node of ours; an operator without
// a rule is recorded by torch.
#include "layers/grad.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <string_view>

#include "core/args.h"
#include "core/callbacks.h"
#include "core/entry.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "reverse/pass.h"
#include "reverse/rule_node.h"
#include "values/strided_region.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::DynamicLayer;
using at::functorch::TransformType;

// torch treats _values as a constant, although its gradients of sparse tensors call it: a second
// derivative would be lost.
void refuse_values(const Operator& op, const Args& args, const Layer& layer) {
  static const c10::OperatorHandle hidden =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_values", "");
  static const c10::OperatorHandle values =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::values", "");
  if (!(op.handle == hidden) && !(op.handle == values)) {
    return;
  }
  const at::Tensor& tensor = peek(args, 0, op.num_args).toTensor();
  // The gradient of a compressed tensor's values is made without calling the layers below.
  const bool is_lost = op.handle == hidden || (tensor.layout() != at::kSparse && layer.level() > 1);
  if (is_lost && layer.follows(tensor)) {
    raise(
        "{} can't differentiate {} of a sparse tensor: its derivative would silently be zero. Use "
        "coalesce().values() of a COO tensor; for a second derivative, compute with to_dense(), or "
        "use jvp inside (grad of jvp).",
        layer.name(),
        op.name());
  }
}

// Its kernel saves which elements are the largest only if it sees a tensor that requires grad, and
// below a layer it sees none; torch's gradient would read data that was not saved.
void refuse_extremes(const Operator& op, const Args& args, const Layer& layer) {
  static const c10::OperatorHandle reduced =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_sparse_mm_reduce_impl", "");
  if (!(op.handle == reduced)) {
    return;
  }
  const std::string_view reduce = peek(args, 2, op.num_args).toStringView();
  if (reduce == "amax" || reduce == "amin") {
    raise_not_implemented(
        "{} can't differentiate torch.sparse.mm with reduce '{}': torch does not save which "
        "elements were selected while a transform is active. Use 'sum' or 'mean', or call "
        "torch.autograd.grad outside the transform.",
        layer.name(),
        reduce);
  }
}

// Runs the gradient of attention as the operators that it is made of: torch has kernels of it, but
// no derivative of them.
bool decompose_gradient_of_attention(const Operator& op, Args& args) {
  const std::string& name = op.handle.operator_name().name;
  return name.find("_scaled_dot_product_") != std::string::npos && name.ends_with("_backward") &&
         callbacks.decompose(op, args);
}

// Gives as_strided(x) the history of x's base if it shows more than x's elements: torch's autograd
// gives it that of x, which has none for the others.
void view_base(const Operator& op, Args& args) {
  static const c10::OperatorHandle as_strided =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::as_strided", "");
  if (!(op.handle == as_strided)) {
    return;
  }
  const at::Tensor x = without_dead_wrappers(peek(args, 0, op.num_args).toTensor());
  const c10::IValue& sizes = peek(args, 1, op.num_args);
  const c10::IValue& strides = peek(args, 2, op.num_args);
  c10::IValue& offset = peek(args, 3, op.num_args);
  if (!x.is_view() || !has_places(x) || !sizes.isIntList() || !strides.isIntList() ||
      !(offset.isInt() || offset.isNone())) {
    return;
  }
  const int64_t start = offset.isNone() ? x.storage_offset() : offset.toInt();
  const at::Tensor base(x._base());
  const bool is_seen_alike = base.scalar_type() == x.scalar_type() &&
                             base.is_conj() == x.is_conj() && base.is_neg() == x.is_neg();
  if (is_seen_alike && !shows_own_elements(x, sizes.toIntVector(), strides.toIntVector(), start)) {
    offset = start;
    peek(args, 0, op.num_args) = base;
  }
}

} // namespace

// NOTE [no_grad inside and outside]
// A transform obeys a no_grad inside the function and ignores one outside it. Entering turns grad
// mode on at this level and saves its old value; below, an outside no_grad holds again, and an
// inside one still holds. jvp does the same with forward grad mode.
void GradLayer::switch_on() {
  previous_grad_mode_ = Modes::of_thread().grad;
  without_inference(no_inference_);
  c10::AutogradState::get_tls_state().set_grad_mode(true);
}

void GradLayer::switch_off() {
  no_inference_.reset();
}

DynamicLayer GradLayer::mirrored(int64_t level) const {
  return DynamicLayer(TransformType::Grad, level, std::nullopt, std::nullopt, previous_grad_mode_);
}

Modes GradLayer::modes_below(Modes here) const {
  return {here.grad && previous_grad_mode_, here.forward_grad};
}

// NOTE [The backward phase]
// grad runs forward, then backward, inside its layer. That backward is not differentiated at this
// level, so an operator it calls need not be recorded here and goes straight down. Grad mode stays
// on all the while (the engine is called with create_graph=True), because the layers below do
// record.
// Two kinds of operators are still processed in full:
// - aliasing ones, because autograd has to know views and versions;
// - those that Python calls, from hooks or an autograd.Function's backward, which may
//   differentiate themselves. The engine runs without the interpreter lock, so if the
//   lock is held, Python is running.
// A composite operator is decomposed first, and its parts go down: its decomposition may depend on
// whether it sees wrappers, and torch.func shows it some.
bool GradLayer::runs_backward() const {
  return backwards_running_.load(std::memory_order_relaxed) > 0 && !callbacks.python_is_running();
}

// A composite operator usually has no rule, but its parts do.
bool GradLayer::decomposes(const Operator& op) const {
  return op.is_composite && (op.vjp_rule == nullptr || runs_backward());
}

GradLayer::Recorder GradLayer::recorder_of(const Operator& op, const ArgumentFacts& facts) const {
  if (!facts.are_strided || facts.any_tangent) { // which a user has made by hand
    return Recorder::Autograd;
  }
  if (facts.requiring_grad.none() || !c10::GradMode::is_enabled() || op.is_constant) {
    // A view of a tensor of this level has to be known as one.
    return op.aliases && facts.any_at_level ? Recorder::Autograd : Recorder::Nobody;
  }
  const VjpRule* rule = op.vjp_rule;
  return rule != nullptr && (op.aliases || rule->knows_all(facts.requiring_grad))
             ? Recorder::Rule
             : Recorder::Autograd;
}

void GradLayer::process(const Operator& op, Args& args) {
  if (!op.aliases && runs_backward()) {
    send_down(op, args);
    return;
  }
  const VjpRule* rule = op.vjp_rule;
  const bool may_have_rule =
      rule != nullptr ? op.written_args.empty() : !op.aliases && !op.is_custom;
  if (!may_have_rule || c10::InferenceMode::is_enabled()) {
    if (!runs_backward()) {
      refuse_values(op, args, *this);
      view_base(op, args);
    }
    AutogradLayer::process(op, args);
    return;
  }
  const ArgumentFacts facts = look_at(args, op.num_args, /*tangents=*/nullptr);
  if (facts.any_dead_wrapper) {
    take_off_dead_wrappers(op, args);
  }
  switch (recorder_of(op, facts)) {
    case Recorder::Nobody:
      send_down(op, args);
      if (op.is_constant && facts.requiring_grad.any()) {
        visit_tensors(args, op.num_returns, [&](const at::Tensor& result) {
          note_without_derivative(op, result);
        });
      }
      break;
    case Recorder::Rule:
      op.aliases ? apply_rule_of_view(*rule, op, args) : apply_rule(*rule, op, args);
      break;
    case Recorder::Autograd:
      if (facts.requiring_grad.any() && !facts.are_strided) {
        refuse_extremes(op, args, *this);
      }
      if (!decompose_gradient_of_attention(op, args)) {
        AutogradLayer::process(op, args);
      }
      break;
  }
}

void GradLayer::apply_rule(const VjpRule& rule, const Operator& op, Args& args) {
  trace("rule", op, *this);
  const auto node = make_rule_node(op, rule, args, *this);
  if (any_saved_hooks()) {
    node->pack_args(args);
  }
  const bool are_plain = unwrap_args(op, args);
  node->save_args(args);
  call_below(op, args, are_plain);
  Args values;
  if (node->reads_results()) {
    values = last(args, op.num_returns).vec();
  }
  change_tensors(args, op.num_returns, [&](const at::Tensor& value, size_t i) {
    at::Tensor result = wrap(value, *this, /*is_immutable=*/false);
    if (!rule.differentiates(i)) {
      return result;
    }
    if (torch::autograd::isDifferentiableType(value.scalar_type())) {
      torch::autograd::set_history(result, node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input()); // keeps its index
      note_without_derivative(op, result);
    }
    return result;
  });
  if (node->reads_results()) {
    node->save_results(std::move(values), args);
  }
}

// Only operators that the function itself calls: a derivative, computed by a transform or a
// Function inside, may be a constant. A pass of ours and the engine's run with no layer of that
// transform entered.
void GradLayer::note_without_derivative(const Operator& op, const at::Tensor& result) {
  if (without_derivative_ == nullptr && c10::GradMode::is_enabled() && result.defined() &&
      !torch::autograd::isDifferentiableType(result.scalar_type()) && Entry::is_innermost(*this) &&
      number_of_pass() == 0 && torch::autograd::get_current_graph_task_id() == -1) {
    without_derivative_ = &op;
  }
}

// torch's view kernel, without the one of autograd proper, tells autograd which tensor the result
// is a view of, so that a write to either is seen by both.
void GradLayer::apply_rule_of_view(const VjpRule& rule, const Operator& op, Args& args) {
  trace("rule", op, *this);
  const auto node = make_rule_node(op, rule, args, *this);
  if (any_saved_hooks()) {
    node->pack_args(args);
  }
  Args values = last(args, op.num_args).vec();
  unwrap_args(op, values);
  node->save_args(values);
  allow_only(DispatchKeySet(DispatchKey::ADInplaceOrView));
  op.handle.callBoxed(&args);
  visit_tensors(args, op.num_returns, [&](const at::Tensor& view) {
    torch::autograd::set_history(view, node);
  });
}

InBackward::InBackward(GradLayer* layer) : layer_(layer) {
  if (layer_) {
    ++layer_->backwards_running_;
  }
}

InBackward::~InBackward() {
  if (layer_) {
    --layer_->backwards_running_;
  }
}

} // namespace torchlayers
