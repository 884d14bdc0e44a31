// Gradients that no formula in a table can say: lists of tensors, and what is the identity.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

bool is_handwritten(const torch::jit::Node& node);

// At the graph's insert point. One gradient an input; nullptr: none.
std::vector<torch::jit::Value*> handwritten_gradient(
    torch::jit::Node& node, at::ArrayRef<torch::jit::Value*> cotangents);

// Operators that cut one tensor into a list of them.
bool is_cutting(const torch::jit::Node& node);

// One tensor of a list that a cutting operator gives, and its cotangent.
struct Part {
  int64_t index;
  torch::jit::Value* cotangent;
};

// The gradient of a cutting node's input, from the cotangents of some of its parts.
torch::jit::Value* join(torch::jit::Node& node, const std::vector<Part>& parts);

} // namespace torchlayers::graph
