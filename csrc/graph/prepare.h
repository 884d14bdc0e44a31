// What a graph is brought to before it is differentiated: no calls, no module, no tuples, no
// constant loops and no writes that can be done without.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace torchlayers::graph {

// How a flat list of values makes a structure: "value", "tuple" or "list", or the name of a
// named tuple's type.
struct Structure {
  std::string kind;
  std::vector<std::string> fields; // a named tuple's
  std::vector<Structure> parts;
};

struct Prepared {
  std::shared_ptr<torch::jit::Graph> graph;
  // Values for the last inputs: a module's parameters and buffers.
  std::vector<c10::IValue> bound;
  // Which of them the graph writes to: it returns their new values after its own outputs.
  std::vector<size_t> written;
  std::vector<Structure> inputs;
  Structure output;
};

// A copy of the graph, prepared. `self` is the module whose method it is, or None. A trace writes
// into its types the one call that it saw; with keep_types they are taken at their word. Examples,
// one for each input but self, say how long lists are and which dtypes tensors have.
Prepared prepare(
    const torch::jit::Graph& graph,
    const c10::IValue& self,
    bool keep_types,
    const std::optional<std::vector<c10::IValue>>& examples);

} // namespace torchlayers::graph
