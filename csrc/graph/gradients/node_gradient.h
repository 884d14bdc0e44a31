// The gradient of one node.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <vector>

namespace torchlayers::graph {

struct NodeGradient {
  // One for each input; nullptr where there is none.
  std::vector<torch::jit::Value*> inputs;
  // The values that replace the node's outputs in the forward graph: a formula may have its own
  // forward part, which returns more values than the node.
  std::vector<torch::jit::Value*> outputs;
};

// Inserts the gradient at the graph's insert point, and the values of the forward pass that it
// needs after the node. Raises an error for nodes without a gradient (differentiable.h).
NodeGradient gradient_of(
    torch::jit::Node& node,
    const std::vector<torch::jit::Value*>& cotangents,
    const std::function<bool(torch::jit::Value*)>& is_needed);

} // namespace torchlayers::graph
