// Makes a module's method a self-contained graph, with attributes as inputs or constants.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

// Replaces %self by additional inputs for the module's tensors, and by constants for other
// attributes that the method reads. Returns the tensors.
std::vector<c10::IValue> lower_module(torch::jit::Graph& graph, const c10::IValue& self);

} // namespace torchlayers::graph
