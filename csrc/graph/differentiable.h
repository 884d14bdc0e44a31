// Which nodes are differentiable, and how many of their cotangents their gradients take.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

// False for an output that never carries a gradient: comparisons, indices, detach, shapes.
bool has_derivative(const torch::jit::Node& node, size_t output);

// Some gradients take only the first cotangents: the other outputs are indices or statistics.
bool is_trimmed(const torch::jit::Node& node);

} // namespace torchlayers::graph
