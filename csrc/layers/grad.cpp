// grad. What an operator does to cotangents is read from its rule, in a node of ours; an operator
// without a rule records torch's own.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "core/args.h"
#include "core/keys.h"
#include "core/layer.h"
#include "core/stack.h"
#include "core/trace.h"
#include "reverse/rule_node.h"
#include "values/plain.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::DynamicLayer;
using at::functorch::TransformType;

// What the arguments ask of the layer.
struct AskedOfGrad {
  bool any_at_level = false;
  bool any_tracked = false;
  // The rule tells the gradient by all that are tracked.
  bool is_known = true;
  // Sparse and nested tensors, and tangents that a user has made by hand, are torch's.
  bool is_plain = true;
  bool any_dead_wrapper = false;

  AskedOfGrad(const Args& args, const Operator& op, const VjpRule* rule, const Layer& layer) {
    const size_t first = args.size() - op.num_args;
    for (size_t i = 0; i < op.num_args; ++i) {
      visit_tensors_of(
          args[first + i], [&](const at::Tensor& tensor) { look_at(tensor, i, rule, layer); });
    }
  }

 private:
  void look_at(const at::Tensor& tensor, size_t arg, const VjpRule* rule, const Layer& layer) {
    const auto* wrapper = wrapper_of(tensor);
    if (wrapper != nullptr && !wrapper->is_alive()) {
      any_dead_wrapper = true;
      look_at(without_dead_wrappers(tensor), arg, rule, layer);
      return;
    }
    is_plain = is_plain && tensor.layout() == at::kStrided && !tensor.is_nested();
    if (!is_at_level(tensor, layer)) {
      return;
    }
    any_at_level = true;
    if (tensor.requires_grad()) {
      any_tracked = true;
      is_known = is_known && rule != nullptr && rule->knows(arg);
    }
    const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    is_plain = is_plain && (meta == nullptr || meta->fw_grad_ == nullptr);
  }
};

} // namespace

bool (*python_is_running)() = [] { return true; };

// NOTE [no_grad inside and outside]
// A transform obeys a no_grad inside the function and is blind to one outside it.
// Entering turns grad mode on at this level and remembers what it was; below, an
// outside no_grad holds again, and an inside one simply still holds. jvp does the
// same with forward grad mode.
GradLayer::GradLayer(bool previous_grad_mode, bool previous_inference_mode)
    : AutogradLayer(Kind::Grad),
      previous_grad_mode_(previous_grad_mode),
      previous_inference_mode_(previous_inference_mode) {}

DynamicLayer GradLayer::mirrored(int64_t level) const {
  return DynamicLayer(TransformType::Grad, level, std::nullopt, std::nullopt, previous_grad_mode_);
}

Modes GradLayer::modes_below(Modes here) const {
  return {here.grad && previous_grad_mode_, here.forward_grad};
}

// NOTE [The backward phase]
// grad runs forward, then backward, inside its layer. Nobody differentiates that
// backward at this level, so an operator it calls need not be recorded here and
// goes straight down. Grad mode stays on all the while (the engine is called with
// create_graph=True), because the layers below do record.
// Two kinds of operators still take the long way:
// - aliasing ones, because autograd has to know views and versions;
// - whatever Python calls, from hooks or an autograd.Function's backward: it may
//   differentiate on its own. The engine runs without the interpreter lock, so
//   holding the lock tells that Python is running.
// An operator made of others is taken apart first, and its parts go down: what it is
// made of may depend on whether it sees wrappers, and torch.func shows it some.
bool GradLayer::runs_backward() const {
  return backwards_running_.load(std::memory_order_relaxed) > 0 && !python_is_running();
}

// An operator made of others has no rule as a rule, and they do.
bool GradLayer::decomposes(const Operator& op) const {
  return op.is_composite && (op.vjp_rule == nullptr || runs_backward());
}

void GradLayer::process(const Operator& op, Args& args) {
  if (!op.aliases && runs_backward()) {
    send_down(op, args);
    return;
  }
  const VjpRule* rule = op.vjp_rule;
  const bool is_view = op.aliases && op.written_args.empty() && rule != nullptr;
  if ((op.aliases && !is_view) || (op.is_custom && rule == nullptr) ||
      c10::InferenceMode::is_enabled()) {
    AutogradLayer::process(op, args);
    return;
  }
  const AskedOfGrad asked(args, op, rule, *this);
  if (asked.any_dead_wrapper) {
    take_off_dead_wrappers(op, args);
  }
  const bool is_recorded = asked.any_tracked && c10::GradMode::is_enabled();
  if (!asked.is_plain) {
    AutogradLayer::process(op, args);
  } else if (is_view) {
    if (is_recorded) {
      follow_view(*rule, op, args);
    } else if (asked.any_at_level) {
      AutogradLayer::process(op, args); // which has to know it as a view
    } else {
      send_down(op, args);
    }
  } else if (!is_recorded || op.is_constant) {
    send_down(op, args); // nothing to differentiate
  } else if (asked.is_known) {
    follow(*rule, op, args);
  } else {
    AutogradLayer::process(op, args);
  }
}

void GradLayer::follow(const VjpRule& rule, const Operator& op, Args& args) {
  trace("rule", op, *this);
  const auto node = make_rule_node(op, rule, args, *this);
  {
    WithoutTop below(*this);
    WithModes modes(modes_below_caller(op));
    SkipAutograd past(SkipAutograd::may_go(op, args));
    op.handle.callBoxed(&args);
  }
  Args values;
  if (node->reads_results()) {
    values.assign(args.end() - static_cast<std::ptrdiff_t>(op.num_returns), args.end());
  }
  change_tensors(args, op.num_returns, [&](const at::Tensor& value, size_t i) {
    at::Tensor result = wrap(value, *this, /*is_immutable=*/false);
    if (!rule.differentiates(i)) {
      return result;
    }
    if (torch::autograd::isDifferentiableType(value.scalar_type())) {
      torch::autograd::set_history(result, node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input()); // it keeps its place
    }
    return result;
  });
  if (node->reads_results()) {
    node->save_results(std::move(values), args);
  }
}

// torch's kernel for views, without that of autograd proper, tells autograd what the result is a
// view of: a write to either is then seen by both.
void GradLayer::follow_view(const VjpRule& rule, const Operator& op, Args& args) {
  trace("rule", op, *this);
  Args unwrapped(args.end() - static_cast<std::ptrdiff_t>(op.num_args), args.end());
  const auto node = make_rule_node(op, rule, unwrapped, *this);
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
