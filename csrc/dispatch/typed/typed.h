// Kernels of the front for operators of some signatures, without boxes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/stack.h"
#include "core/trace.h"
#include "dispatch/fallbacks.h"
#include "values/wrapper.h"

namespace torchlayers {

// NOTE [Typed]
// The dispatcher puts an operator's arguments in boxes on their way into a fallback, and the
// fallback takes them out on their way to the next kernel. Where little else is done that shows:
// under vmap, for operators that are called below with the same arguments (pointwise ones, NOTE
// [Batched alike]) or with a dimension counted one further back. So the front has for those a
// kernel of the operator's own signature. Safe are the signatures by which one tensor goes out and
// nothing is written to or drawn at random: tensors and numbers in (pointwise.cpp), or one tensor
// and its dimensions (along.cpp). Whatever else a call is, another layer's, an escaped tensor's,
// under autocast, traced, goes into boxes after all. So does one that raised an error: there it
// raises it again, and NOTE [An error under vmap] is seen to.
// Other layers do so much more for an operator that their boxes don't show.

// The layer, if it is a vmap that may run an operator so.
inline VmapLayer* vmap_on_top() {
  Layer* layer = top_layer();
  const bool is_vmap = layer != nullptr && layer->kind() == Layer::Kind::Vmap;
  if (!is_vmap || tracing || autocast_is_on() || is_bypassed(kTorchFuncFront)) {
    return nullptr;
  }
  return static_cast<VmapLayer*>(layer);
}

template <class... Given>
at::Tensor front_boxed(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, const Given&... given) {
  Args args;
  args.reserve(sizeof...(Given));
  (args.emplace_back(given), ...);
  front(handle, keys, &args);
  return std::move(args[0]).toTensor();
}

// The names of the operators that have such a kernel.
std::vector<std::string>& names_of_typed();

// Of "sum.dim_IntList", for one.
c10::OperatorName name_of_aten(const std::string& name);

// Registers it on the front key, for good, where the operators have the fallback else. Not for
// an operator that this torch does not have, or that is not as it should be.
template <class Kernel, class Is>
void register_kernel(const char* name, const Is& is) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto handle = dispatcher.findSchema(name_of_aten(name));
  if (!handle || !is(Operator::of(*handle))) {
    return;
  }
  // Never taken back: Python unloads no extension.
  static auto* registered = new std::vector<c10::RegistrationHandleRAII>();
  names_of_typed().push_back("aten::" + std::string(name));
  registered->push_back(dispatcher.registerImpl(
      name_of_aten(name),
      kFront,
      c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(*handle)),
      c10::impl::CppSignature::make<typename Kernel::Signature>(),
      /*inferred_function_schema=*/nullptr,
      "torchlayers"));
}

void register_typed_pointwise();
void register_typed_along();

inline void register_typed() {
  register_typed_pointwise();
  register_typed_along();
}

} // namespace torchlayers
