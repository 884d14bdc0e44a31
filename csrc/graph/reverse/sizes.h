// Optimizes the capture of sizes: a tensor needed only for its size is not captured, a size is not
// captured if its tensor is, and none is captured twice.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

// Replaces _size_if_not_equal by a constant if the graph's types have both shapes.
void fold_sizes(torch::jit::Block& reverse);

// Merges shape queries of the same tensor in the forward graph.
void merge_sizes(torch::jit::Block& forward);

// Moves shape queries between the forward graph and the reverse block, such that the fewest values
// are captured, and as few tensors as possible.
void place_sizes(torch::jit::Block& forward, torch::jit::Block& reverse);

} // namespace torchlayers::graph
