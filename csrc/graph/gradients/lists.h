// Gradients for lists of tensors: unpacked, constructed, split from one tensor, broadcast to one
// shape.
#pragma once

#include "graph/reverse/reverse.h"

namespace torchlayers::graph {

bool is_tensor_list(const torch::jit::Value* value);

// Inserts the gradient of a node that constructs or unpacks such a list; false for other nodes.
bool differentiate_list(torch::jit::Node& node, Gradients& gradients, const Tracked& tracked);

} // namespace torchlayers::graph
