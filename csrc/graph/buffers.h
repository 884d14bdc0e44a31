// What a module writes to its buffers is returned by the graph instead.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace torchlayers::graph {

// A graph that is run again for a derivative of higher order must not count a batch twice. So
// each of the last `bound` inputs that is written to is cloned first, and the clone, written to,
// becomes one more output. Gives their positions among the bound inputs, in the outputs' order.
std::vector<size_t> return_buffers(torch::jit::Graph& graph, size_t bound);

} // namespace torchlayers::graph
