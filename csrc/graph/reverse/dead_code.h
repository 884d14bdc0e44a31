// Dead code elimination.
#pragma once

#include "graph/reverse/reverse.h"

namespace torchlayers::graph {

// Removes the reverse block's dead nodes, and the dead outputs of the nodes inside it.
void remove_dead(torch::jit::Block& reverse);

// The same for the forward graph; then removes the gradients of values that are gone from either.
void remove_dead(torch::jit::Graph& graph, Reverse& reverse);

} // namespace torchlayers::graph
