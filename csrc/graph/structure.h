// Tuples and lists among a graph's inputs and outputs, taken apart.
#pragma once

#include <optional>
#include <vector>

#include "graph/prepare.h"

namespace torchlayers::graph {

// Every tuple, and every list that may hold tensors, becomes as many inputs as it has members.
std::vector<Structure> flatten_inputs(
    torch::jit::Graph& graph, const std::optional<std::vector<c10::IValue>>& examples);

// The same for outputs, where the graph puts them together itself.
Structure flatten_outputs(torch::jit::Graph& graph);

} // namespace torchlayers::graph
