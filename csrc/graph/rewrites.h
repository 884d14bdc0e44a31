// Operators that are compositions of others, written out before the graph is differentiated.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace torchlayers::graph {

// The operators that are, for the tests.
std::vector<std::string> composition_names();

void rewrite(torch::jit::Graph& graph);

} // namespace torchlayers::graph
