// Writes to parts of tensors, as in `y[0] = x`, made into new tensors.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

// Writes to selections and slices of a tensor that the block made, where nobody else looks at its
// memory later on. Other writes are left.
void remove_writes(torch::jit::Block& block);

} // namespace torchlayers::graph
