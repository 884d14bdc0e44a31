// Lists of tensors: taken apart, put together, cut from one tensor, broadcast to one shape.
#pragma once

#include "graph/reverse.h"

namespace torchlayers::graph {

bool is_tensor_list(const torch::jit::Value* value);

// Inserts the gradient of a node that makes or takes apart such a list; false for other nodes.
bool differentiate_list(torch::jit::Node& node, Gradients& gradients, const Tracked& tracked);

} // namespace torchlayers::graph
