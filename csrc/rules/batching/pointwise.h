// Pointwise operators on values that are batched alike. NOTE [Batched alike].
#pragma once

#include "rules/batching/batched_call.h"

namespace torchlayers {

// If the arguments are batched alike, runs the operator on their values and returns true.
bool run_batched_alike(BatchedCall& call);

// The rule of a pointwise operator whose arguments are batched in any way. `has_one_shape`: its
// kernel does not broadcast.
bool line_up(BatchedCall& call, size_t has_one_shape);

} // namespace torchlayers
