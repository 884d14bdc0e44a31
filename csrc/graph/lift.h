// Lambda lifting: the reverse block becomes a graph of its own, what it reads its inputs.
#pragma once

#include "graph/gradient.h"
#include "graph/reverse.h"

namespace torchlayers::graph {

// Registers the captured temporaries as outputs of result.f, makes result.df of the reverse
// block, and fills in the rest of the result. The reverse block is gone afterwards.
void lift_reverse(ScriptGradient& result, Reverse& reverse);

// The interpreter's callers and torch.jit expect one result of a graph: a tuple of them.
void pack_results(torch::jit::Graph& graph);

} // namespace torchlayers::graph
