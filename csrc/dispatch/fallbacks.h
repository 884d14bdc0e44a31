// The two fallbacks, registered once at import.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "core/keys.h"
#include "core/layer.h"

namespace torchlayers {

void front(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args);
void back(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args);

// NOTE [Bypassing the stack]
// Where torch means to call an operator past every transform, it excludes torch.func's
// keys: torch.tensor() does while it makes the tensor it fills, functionalization's dry
// run on meta tensors does. We exclude those keys nowhere that this is asked, so that
// finding one excluded tells us to keep out as well.
inline bool is_bypassed(c10::DispatchKey torch_funcs_key) {
  return thread_keys().excluded().has(torch_funcs_key);
}

// Passes an operator that is not for our layers on to what comes after `key`.
void step_aside(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::DispatchKey key, Args* args);

// Checks that both keys are free and registers the fallbacks on them. Throws, and
// registers nothing, if another package has a kernel there.
void claim_keys();

} // namespace torchlayers
