// Lambda lifting: the reverse block becomes a separate graph, and the values that it reads its
// inputs.
#pragma once

#include "graph/gradient.h"
#include "graph/reverse/reverse.h"

namespace torchlayers::graph {

// Makes the captured temporaries outputs of result.f, creates result.df from the reverse block, and
// fills in the rest of the result. The reverse block no longer exists afterwards.
void lift_reverse(ScriptGradient& result, Reverse& reverse);

// Callers of the interpreter, and torch.jit, expect a graph to have one result: a tuple.
void pack_results(torch::jit::Graph& graph);

} // namespace torchlayers::graph
