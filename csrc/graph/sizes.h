// Sizes are captured where a tensor would be captured for its size only; a size is not captured
// where its tensor is anyway; and none is captured twice.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

// Replaces _size_if_not_equal by a constant where both shapes are in the graph's types.
void fold_sizes(torch::jit::Block& reverse);

// Merges the forward graph's questions about the same tensor's shape.
void merge_sizes(torch::jit::Block& forward);

// Moves questions about shapes between the forward graph and the reverse block, so that the
// fewest values are captured, tensors least of all.
void place_sizes(torch::jit::Block& forward, torch::jit::Block& reverse);

} // namespace torchlayers::graph
