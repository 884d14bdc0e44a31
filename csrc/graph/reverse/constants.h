// Copies constants to where they are used, so that they are not captured.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

// Copies the forward block's constants that a reverse block reads into it, and also lists that are
// constructed from values, whose members are captured instead.
void lift_constants(const torch::jit::Block& forward, torch::jit::Block& reverse);

} // namespace torchlayers::graph
