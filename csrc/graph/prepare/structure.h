// Flattens tuples and lists among a graph's inputs and outputs.
#pragma once

#include <optional>
#include <vector>

#include "graph/prepare/prepare.h"

namespace torchlayers::graph {

// Every tuple, and every list that may hold tensors, is replaced by one input per member.
std::vector<Structure> flatten_inputs(
    torch::jit::Graph& graph, const std::optional<std::vector<c10::IValue>>& examples);

// The same for outputs that the graph itself constructs.
Structure flatten_outputs(torch::jit::Graph& graph);

} // namespace torchlayers::graph
