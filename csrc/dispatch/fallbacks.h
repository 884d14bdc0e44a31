// The two fallbacks, registered once at import.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "core/keys.h"
#include "core/operator.h"

namespace torchlayers {

class Layer;

// The layer that an operator is for; null if that is torch.func's, or if it bypasses the stack.
Layer* layer_at_work();

void front(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args);
void back(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Args* args);

// Passes an operator that is not for our layers on to what comes after `key`.
void step_aside(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::DispatchKey key, Args* args);

// Checks that both keys are free and registers the fallbacks on them. Throws, and
// registers nothing, if another package has a kernel there.
void claim_keys();

} // namespace torchlayers
