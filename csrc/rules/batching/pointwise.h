// Pointwise operators of values that are batched alike.
#pragma once

#include "rules/batching/batched_call.h"

namespace torchlayers {

// Runs the operator so, and returns true, if its arguments are batched alike.
bool run_batched_alike(BatchedCall& call);

// The rule of a pointwise operator whose arguments are batched in any way. `has_one_shape`: its
// kernel does not broadcast.
bool line_up(BatchedCall& call, size_t has_one_shape);

} // namespace torchlayers
