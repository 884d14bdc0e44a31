// Puts a formula's graph into another.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

// Inserts a copy of a formula, which has to be kept by the caller for good, at the graph's insert
// point. Its nodes get the source line of `of`, the node
// that they stand for or are the gradient of. Gives the outputs, a tuple's members if it is one.
std::vector<torch::jit::Value*> insert_formula(
    torch::jit::Graph& graph,
    torch::jit::Graph& formula,
    at::ArrayRef<torch::jit::Value*> inputs,
    const torch::jit::Node& of);

} // namespace torchlayers::graph
