// The gradient of one node.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <vector>

namespace torchlayers::graph {

struct NodeGradient {
  // One for each input; nullptr where there is none.
  std::vector<torch::jit::Value*> inputs;
  // What stands for the node's outputs in the forward graph now: a formula may bring a forward
  // part of its own, which returns more than the node did.
  std::vector<torch::jit::Value*> outputs;
};

// Inserts the gradient at the graph's insert point, and what it reads of the forward pass after
// the node. Refuses nodes that have none (differentiable.h).
NodeGradient gradient_of(
    torch::jit::Node& node,
    const std::vector<torch::jit::Value*>& cotangents,
    const std::function<bool(torch::jit::Value*)>& is_needed);

} // namespace torchlayers::graph
