// A module's method becomes a graph of its own: attributes are inputs or constants.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

// Replaces %self by inputs for the tensors it holds, after the others, and by constants for what
// else the method reads of it. Gives the tensors.
std::vector<c10::IValue> lower_module(torch::jit::Graph& graph, const c10::IValue& self);

} // namespace torchlayers::graph
