// Rewrites operators as compositions of others, before the graph is differentiated.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace torchlayers::graph {

// The names of these operators, for tests.
std::vector<std::string> composition_names();

void rewrite(torch::jit::Graph& graph);

} // namespace torchlayers::graph
