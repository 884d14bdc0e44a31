// The back: the layer's own keys are done with the operator, and the layer sends it down.
#include "core/keys.h"
#include "core/stack.h"
#include "core/trace/trace.h"
#include "dispatch/fallbacks.h"

namespace torchlayers {

void back(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args) {
  Layer* layer = top_layer();
  trace_state("back", Operator::of(handle));
  if (layer == nullptr || is_bypassed(kTorchFuncBack) || Processing::of(*layer) == nullptr) {
    step_aside(handle, keys, kBack, args); // NOTE [Stepping aside]
    return;
  }
  layer->send_down(Operator::of(handle), *args);
}

} // namespace torchlayers
