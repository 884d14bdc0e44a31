// Constants are copied to where they are used, not captured.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

// Copies the forward block's constants that a reverse block reads into it, and the lists that are
// put together of values: their members are captured instead.
void lift_constants(const torch::jit::Block& forward, torch::jit::Block& reverse);

} // namespace torchlayers::graph
