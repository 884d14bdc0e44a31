// Inserts a formula's graph into another.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

// Inserts a copy of a formula, which the caller must never free, at the graph's insert point. Its
// nodes get the source line of `of`, the node that they replace or whose gradient they are. Returns
// the outputs, or the members of an output that is a tuple.
std::vector<torch::jit::Value*> insert_formula(
    torch::jit::Graph& graph,
    torch::jit::Graph& formula,
    at::ArrayRef<torch::jit::Value*> inputs,
    const torch::jit::Node& of);

} // namespace torchlayers::graph
