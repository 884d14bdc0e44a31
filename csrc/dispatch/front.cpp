// The front: lets the layer on top of the stack process the operator.
#include <ATen/record_function.h>

#include <array>
#include <functional>
#include <string_view>

#include "core/args.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/stack.h"
#include "core/trace/call_recorder.h"
#include "core/trace/trace.h"
#include "dispatch/fallbacks.h"
#include "dispatch/undispatched_tensors.h"
#include "layers/captured.h"
#include "values/escaped.h"
#include "values/functional.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

bool is_empty(c10::DispatchKeySet keys) {
  return keys.highestFunctionalityKey() == DispatchKey::Undefined;
}

// NOTE [Autocast happens once]
// Under autocast the cast comes first, where the user called the operator: the front runs the
// operator's autocast kernel, whose casts and whose call of the operator come back here with
// autocast off, and are recorded and batched like any other. A composite operator is decomposed,
// and each of its parts looked at. After that no layer casts again: batching rules and derivatives
// call operators that a program without layers would not have called, and torch.func, which casts
// those, gives wrong dtypes (pytorch#192617).
// The dispatcher leaves an autocast key in `keys` if the operator has a kernel there
// for these arguments' device.
bool cast(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const auto casting = keys & kAutocastKeys;
  if (is_empty(casting)) {
    return false;
  }
  handle.redispatchBoxed(casting, args);
  return true;
}

// Runs the kernel of a composite operator; the operators in it come to the front one by one.
bool run_composite(
    const Operator& op, const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  const auto composite = keys & c10::autograd_dispatch_keyset;
  if (!op.is_composite || op.has_torch_func_kernel || is_empty(composite)) {
    return false;
  }
  handle.redispatchBoxed(composite, args);
  return true;
}

// Rewords the error of torch.func's vmap, if innermost, for a write that ours would make room for.
void explain_write(const c10::Error& error, const c10::OperatorHandle& handle) {
  if (error.msg().find("vmap: inplace arithmetic(") == 0) {
    raise_as(
        ErrorClass::InPlace,
        "torch.func's vmap (level {}) can't write a batched value into a tensor that is not "
        "batched ({}). torchlayers.vmap can, if the function has created the tensor: use it for "
        "this vmap too, or call torchlayers.install(), which replaces torch.func's.",
        mirror().size(),
        toString(handle.operator_name()));
  }
}

// Kinds of tensors with their own kernels, by the names of their keys, and advice.
struct Kind {
  std::string_view key;
  const char* name;
  const char* advice;
};
constexpr std::array kKinds{
    Kind{
        "SparseCsr", "sparse (CSR, CSC, BSR or BSC)", "Convert it with to_dense() or to_sparse()."},
    Kind{"Sparse", "sparse (COO)", "Convert it with to_dense(), or compute with its values()."},
    Kind{"NestedTensor", "nested", "Pad it with to_padded_tensor(), or unbind() it."},
    Kind{"Mkldnn", "in MKL-DNN's format", "Convert it with to_dense()."},
    Kind{"Quantized", "quantized", "Convert it with dequantize()."},
};

// Rewords torch's error if an operator, or one in its derivative, has no kernel for such a kind.
void explain_missing_kernel(
    const c10::NotImplementedError& error, const Operator& op, const Layer& layer) {
  const std::string text = error.what_without_backtrace();
  constexpr std::string_view begin = "Could not run '";
  constexpr std::string_view middle = "' with arguments from the '";
  const size_t end = text.find(middle);
  if (!text.starts_with(begin) || end == std::string::npos) {
    return;
  }
  const std::string missing = text.substr(begin.size(), end - begin.size());
  const std::string_view backend = std::string_view(text).substr(end + middle.size());
  for (const Kind& kind : kKinds) {
    if (backend.starts_with(kind.key)) {
      raise_not_implemented(
          "{} can't run {} on a tensor that is {}: torch has no kernel of {} for such tensors. {}",
          layer.name(),
          op.name(),
          kind.name,
          missing,
          kind.advice);
    }
  }
}

// Rewords torch's errors about layouts that a kernel does not take.
void explain_layout(const c10::Error& error, const Operator& op, const Layer& layer) {
  const std::string text = error.what_without_backtrace();
  const bool is_torchs = typeid(error) == typeid(c10::Error) && !text.starts_with("torchlayers");
  if (is_torchs && text.find("Sparse") != std::string::npos) {
    raise_as(
        layer.batch_size() != nullptr ? ErrorClass::BatchedOperator : ErrorClass::Transform,
        "{} can't run {} on these sparse tensors, for which torch has no kernel: {}. Convert them "
        "with to_dense(), or to another layout.",
        layer.name(),
        op.name(),
        text.substr(0, text.find('\n')));
  }
}

// Tells observers of a call if torch has not. NOTE [Recorded calls]
bool front_observed(
    const Operator& op, const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  if (!is_unrecorded(op.name())) {
    return false;
  }
  at::RecordFunction call;
  if (call.isActive()) {
    call.before(std::cref(handle.schema()), torch::jit::last(*args, op.num_args));
  }
  if (is_unrecorded(op.name())) { // observers are off on this thread, or it is part of a kernel
    return false;
  }
  front(handle, keys, args);
  call.setOutputs(torch::jit::last(*args, handle.schema().returns().size()));
  return true;
}

} // namespace

// NOTE [Stepping aside]
// If the top of the stack is not ours, torch.func has to process the operator. The front then
// passes it on with only its own key removed and the thread state unchanged: next comes
// torch.func's front, or, if that is running already, the key it allows. The back does the same if
// none of our layers is processing an operator. If none of ours is on the stack at all, other code
// has taken torch.func's stack away for a while, as Dynamo does, and knows nothing of our keys:
// they are taken away too.
void step_aside(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::DispatchKey key, Args* args) {
  if (any_layer()) {
    try {
      handle.redispatchBoxed(keys.remove(key), args);
    } catch (const c10::Error& error) {
      explain_write(error, handle);
      throw;
    }
    return;
  }
  auto without = thread_keys();
  without.set_included(without.included() - kOurKeys);
  c10::impl::ForceDispatchKeyGuard guard(without);
  const Operator& op = Operator::of(handle);
  if (op.plain_form == nullptr || !op.plain_form(op, *args)) { // NOTE [Writes below all layers]
    handle.callBoxed(args);
  }
}

Layer* layer_at_work() {
  Layer* layer = top_layer();
  return layer != nullptr && !is_bypassed(kTorchFuncFront) ? layer : nullptr;
}

void front(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  Layer* layer = top_layer();
  const Operator& op = Operator::of(handle);
  if (C10_UNLIKELY(tracing)) {
    if (layer != nullptr && front_observed(op, handle, keys, args)) {
      return;
    }
    print_state("front", op);
  }
  // The value may be a tensor of a layer that is on the stack. NOTE [Escaped]
  if (C10_UNLIKELY(layer != nullptr && keys.has(DispatchKey::Functionalize))) {
    change_tensors(*args, op.num_args, [](const at::Tensor& tensor, size_t) {
      return without_ended_functionalize(tensor);
    });
  }
  if (C10_UNLIKELY(functions_at_work.load(std::memory_order_relaxed) > 0)) {
    resolve_captured(op, *args);
  }
  if (layer != nullptr && is_bypassed(kTorchFuncFront)) {
    for (const Layer* each : layers_on_stack()) {
      if (each != nullptr) {
        each->bypassed(op, *args);
      }
    }
    refuse_wrapped(op, *args);
    layer = nullptr;
  }
  if (layer != nullptr) {
    const bool casts = autocast_is_on();
    if (casts && cast(handle, keys, args)) {
      return;
    }
    if ((casts || layer->decomposes(op)) && run_composite(op, handle, keys, args)) {
      return;
    }
    if ((!op.hidden_args.empty() || op.hides_results) && run_hidden(op, keys, args, *layer)) {
      return;
    }
  }
  if (layer == nullptr) {
    settle_escaped(op, *args); // NOTE [Escaped]
  }
  // torch.func decomposes some operators (linear) for which a layer has a rule.
  if (layer == nullptr || (op.has_torch_func_kernel && !layer->has_rule_for(op))) {
    step_aside(handle, keys, kFront, args);
    return;
  }
  trace("process", op, *layer);
  Processing processing(*layer);
  try {
    layer->process(op, *args);
  } catch (const c10::NotImplementedError& error) {
    explain_missing_kernel(error, op, *layer);
    throw;
  } catch (const c10::Error& error) {
    explain_layout(error, op, *layer);
    throw;
  }
  if (C10_UNLIKELY(stacks_left_dirty.load(std::memory_order_relaxed) > 0)) {
    refuse_dirt_of(op);
  }
}

} // namespace torchlayers
