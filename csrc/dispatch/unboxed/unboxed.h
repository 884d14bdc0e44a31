// Kernels of the front for operators of some signatures, unboxed.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/below.h"
#include "core/skip_autograd.h"
#include "core/trace/trace.h"
#include "dispatch/fallbacks.h"
#include "layers/vmap/errors.h"
#include "values/functional.h"
#include "values/local_storages.h"
#include "values/wrapper.h"

namespace torchlayers {

// NOTE [Typed]
// The dispatcher boxes an operator's arguments on their way into a fallback, and unboxes them on
// their way to the next kernel. Where little else is done that shows:
// under vmap, for operators that are called below with the same arguments (pointwise ones, NOTE
// [Batched alike]) or with a dimension counted one further back. So the front has for those a
// kernel of the operator's own signature. Safe are the signatures by which one tensor goes out and
// nothing is drawn at random, or written to before all errors have been raised: tensors and numbers
// in (pointwise.cpp), one tensor and its dimensions (along.cpp), or copy_ (copy.cpp). Whatever else
// a call is, another layer's, an escaped tensor's, under autocast, goes boxed after all. Other
// layers do so much more for an operator that boxing doesn't show.
// An error is explained here (NOTE [An error under vmap]). Calling the operator again, boxed, to
// have it explained there would double its cost with each vmap around it.

// The layer, if it is a vmap that may run an operator so.
inline Layer* vmap_on_top() {
  Layer* layer = top_layer();
  const bool may_run = layer != nullptr && layer->batch_size() != nullptr && !autocast_is_on() &&
                       !is_bypassed(kTorchFuncFront);
  return may_run ? layer : nullptr;
}

template <class... Given>
Args boxed(const Given&... given) {
  Args args;
  args.reserve(sizeof...(Given));
  (args.emplace_back(given), ...);
  return args;
}

// The whole work of the layer, a vmap, on the operator with the arguments `given`: `call` calls it
// below.
template <class Call, class... Given>
at::Tensor process_typed(
    const Operator& op,
    Layer& layer,
    const char* step,
    bool are_plain,
    const Call& call,
    const Given&... given) {
  trace_state("front", op);
  trace("typed", op, layer);
  const Processing processing(layer);
  trace(step, op, layer);
  try {
    Below below(layer, op);
    below.skip_autograd(op, are_plain);
    return call();
  } catch (const c10::Error& error) {
    say_again(error, op, boxed(given...), static_cast<const VmapLayer&>(layer));
    throw;
  } catch (const LayerError& error) {
    say_again(error, op, boxed(given...), static_cast<const VmapLayer&>(layer));
    throw;
  }
}

inline void add_memories(LocalStorages::Memories& to, const at::Tensor& of, int64_t level) {
  to.append(LocalStorages::memories_of(of, level));
}
template <class Other>
void add_memories(LocalStorages::Memories&, const Other&, int64_t) {}

// The same where nothing is batched at this layer; what comes of it was made inside, or is a view.
// NOTE [Made inside].
template <class Call, class First, class... Rest>
at::Tensor process_unbatched(
    const Operator& op,
    Layer& layer,
    bool are_plain,
    const Call& call,
    const First& first,
    const Rest&... rest) {
  LocalStorages::Memories memories;
  add_memories(memories, first, layer.level());
  (add_memories(memories, rest, layer.level()), ...);
  at::Tensor result = process_typed(op, layer, "send_down", are_plain, call, first, rest...);
  if (op.aliases) {
    layer.local_storages()->note_view(result, first, /*is_detached=*/false);
  }
  layer.local_storages()->note(result, memories);
  return result;
}

template <class... Given>
at::Tensor front_boxed(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, const Given&... given) {
  Args args = boxed(given...);
  front(handle, keys, &args);
  return std::move(args[0]).toTensor();
}

// Whether it is a wrapper of grad or jvp, or a functional tensor whose functionalize has ended.
inline bool is_wrapped_or_ended(const at::Tensor& tensor) {
  constexpr DispatchKeySet kWrapped(
      {DispatchKey::FuncTorchGradWrapper, DispatchKey::Functionalize});
  return C10_UNLIKELY(tensor.key_set().has_any(kWrapped)) &&
         (wrapper_of(tensor) != nullptr || has_ended_functionalize(tensor));
}

// A tensor at home here needs no look at whether it is dead or has escaped, and stands for itself.
inline bool is_at_home(const at::Tensor& tensor, const Layer& layer) {
  return !is_wrapped_or_ended(tensor) && !has_escaped(tensor, layer) &&
         !layer.local_storages()->has_written(tensor);
}

// The names of the operators that have such a kernel.
inline std::vector<std::string>& names_of_typed() {
  static auto* names = new std::vector<std::string>();
  return *names;
}

// Registers it on the front key, for good, where the operators of aten have the fallback else.
template <class Kernel>
void register_kernel(const c10::OperatorHandle& handle) {
  // Never taken back: Python unloads no extension.
  static auto* registered = new std::vector<c10::RegistrationHandleRAII>();
  names_of_typed().push_back(c10::toString(handle.operator_name()));
  registered->push_back(
      c10::Dispatcher::singleton().registerImpl(
          handle.operator_name(),
          kFront,
          c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
              std::make_unique<Kernel>(handle)),
          c10::impl::CppSignature::make<typename Kernel::Signature>(),
          /*inferred_function_schema=*/nullptr,
          "torchlayers"));
}

// Not for an operator that this torch does not have, or that is not as it should be.
template <class Kernel, class Is>
void register_kernel(const char* name, const Is& is) {
  const auto full_name = torch::jit::parseName("aten::" + std::string(name));
  const auto handle = c10::Dispatcher::singleton().findSchema(full_name);
  if (handle && is(Operator::of(*handle))) {
    register_kernel<Kernel>(*handle);
  }
}

void register_typed_pointwise();
void register_typed_along();
void register_typed_copy();

inline void register_typed() {
  register_typed_pointwise();
  register_typed_along();
  register_typed_copy();
}

} // namespace torchlayers
