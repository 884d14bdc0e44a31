#include "layers/custom.h"

#include <string_view>

#include "core/args.h"
#include "core/below.h"
#include "core/callbacks.h"
#include "core/keys.h"
#include "core/saved_stack.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "layers/functionalize/views.h"
#include "values/escaped.h"
#include "values/without_strides.h"
#include "values/wrapper.h"

namespace torchlayers {

// torch.func has no such transform: for it this is a grad for which no tensor requires grad.
at::functorch::DynamicLayer CustomLayer::mirrored(int64_t level) const {
  return at::functorch::DynamicLayer(
      at::functorch::TransformType::Grad,
      level,
      std::nullopt,
      std::nullopt,
      /*prev_grad_mode=*/true);
}

bool CustomLayer::follows(const at::Tensor& tensor) const {
  const auto* wrapper = wrapper_of(tensor);
  return wrapper != nullptr && is_of_layer(*wrapper, *this);
}

at::Tensor CustomLayer::wrap_value(const at::Tensor& value) const {
  return wrap_value_as(value, [&](const at::functorch::Interpreter& interpreter) {
    return wrapper_around(value, interpreter);
  });
}

at::Tensor CustomLayer::wrap_value_as(
    const at::Tensor& value,
    c10::function_ref<at::Tensor(const at::functorch::Interpreter&)> make) const {
  check_from_outside(value, *this);
  at::Tensor wrapper = make(entry_of(*this).interpreter());
  add_front_key(wrapper); // NOTE [Escaped]
  return wrapper;
}

// The functionalize of Layer.apply, above this layer, can't make a constant functional that is so
// already, for another functionalize below.
void CustomLayer::wrap_functional(const Operator& op, Args& results) const {
  bool is_called_by_functionalize = false;
  Processing::visit_all([&](const Layer& layer) {
    // Not one around a rule that enters this layer.
    const bool is_inside = layer.level() == level() + 1 && layer.number() > number();
    is_called_by_functionalize |= is_inside && std::string_view(layer.kind()) == "functionalize";
  });
  if (is_called_by_functionalize) {
    change_tensors(results, op.num_returns, [&](const at::Tensor& tensor, size_t) {
      return is_functional(tensor) ? wrap_value(tensor) : tensor;
    });
  }
}

at::Tensor CustomLayer::rewritten(
    const at::Tensor& before, const at::Tensor& after, bool is_detached) const {
  const BelowLevel below(level());
  const at::Tensor result = rewritten_below(before, after, is_detached);
  return is_functional(result) ? wrap_value(result) : result; // as wrap_functional does
}

void CustomLayer::process(const Operator& op, Args& args) {
  take_off_dead_wrappers(op, args);
  const bool is_followed = any_tensor(
      args, op.num_args, [&](const at::Tensor& tensor) { return is_at_level(tensor, *this); });
  if (!is_followed && (!sees_all_ || is_gone())) {
    send_down(op, args);
    wrap_functional(op, args);
    return;
  }
  bool is_processed = false;
  {
    const Below below(*this, op);
    if (op.plain_form != nullptr && mirror().empty()) { // the rule calls it
      thread_keys().set_included(thread_keys().included() | DispatchKeySet(kFront));
    }
    is_processed = process_below(op, args);
  }
  if (is_processed) {
    trace("rule", op, *this);
    wrap_functional(op, args);
    return;
  }
  // The operators of a decomposition reach the front as if the user had called them.
  thread_keys() = Processing::of(*this)->keys_outside();
  if (!op.written_args.empty() || !callbacks.decompose(op, args)) {
    process_undecomposed(op, args);
  }
}

void CustomLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  const auto is_not_plain = [](const at::Tensor& value) { return !is_plain(value); };
  call_below(op, args, !any_tensor(args, op.num_args, is_not_plain));
}

} // namespace torchlayers
