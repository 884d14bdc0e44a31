// Makes writes to parts of tensors, as in `y[0] = x`, out-of-place.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

// Replaces writes to selections and slices of a tensor that the block created, if nothing else
// reads its memory later. Other writes remain.
void remove_writes(torch::jit::Block& block);

} // namespace torchlayers::graph
