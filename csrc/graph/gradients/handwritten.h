// Gradients that don't fit into a table: of operators on lists of tensors, and of identities.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

bool is_handwritten(const torch::jit::Node& node);

// Inserts at the graph's insert point. One gradient per input; nullptr for none.
std::vector<torch::jit::Value*> handwritten_gradient(
    torch::jit::Node& node, at::ArrayRef<torch::jit::Value*> cotangents);

// Operators that split one tensor into a list of them.
bool is_cutting(const torch::jit::Node& node);

// One tensor of the list that a splitting operator returns, and its cotangent.
struct Part {
  int64_t index;
  torch::jit::Value* cotangent;
};

// The gradient of a splitting node's input, from the cotangents of some of its parts.
torch::jit::Value* join(torch::jit::Node& node, const std::vector<Part>& parts);

} // namespace torchlayers::graph
