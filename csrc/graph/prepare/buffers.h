// Turns a module's writes to its buffers into outputs of the graph.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

// A graph that is run again for a derivative of higher order must not update statistics twice. So
// each of the last `bound` inputs that is written to is cloned before the first write, and the
// updated clone is returned as an additional output. Earlier reads are of the input itself, whose
// old values a derivative may need. Returns the positions of these inputs among the bound ones, in
// the order of the outputs.
std::vector<size_t> return_buffers(torch::jit::Graph& graph, size_t bound);

} // namespace torchlayers::graph
