// vmap of pointwise operators.
#pragma once

#include "../../layer.h"

namespace torchlayers {

// Runs a pointwise operator on values that are batched alike, and tells whether it did.
// NOTE [Batched alike].
bool run_batched_alike(const Operator& op, Args& args, const VmapLayer& layer);

} // namespace torchlayers
