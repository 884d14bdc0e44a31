// The values of the forward pass that a reverse block reads.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

// Whether a node is in this block or in a nested one.
bool is_inside(const torch::jit::Node* node, const torch::jit::Block& block);

// The value that this one is a view of, as far as operator schemas tell.
const torch::jit::Value* root_of(const torch::jit::Value* value);

// The values defined directly in `forward` that are used inside `reverse`, in the order in which
// they are computed.
std::vector<torch::jit::Value*> captures_of(
    torch::jit::Block& forward, const torch::jit::Block& reverse);

void replace_uses_in(
    const torch::jit::Block& block, torch::jit::Value* value, torch::jit::Value* by);

// Raises an error if the graph writes to values that the reverse block reads later.
void check_captures_keep(torch::jit::Graph& graph, const torch::jit::Block& reverse);

} // namespace torchlayers::graph
