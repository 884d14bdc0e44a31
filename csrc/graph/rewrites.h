// Operators that are compositions of others, written out before the graph is differentiated.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace torchlayers::graph {

void rewrite(torch::jit::Graph& graph);

} // namespace torchlayers::graph
