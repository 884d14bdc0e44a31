// Prepares a graph for differentiation: removes calls, the module, tuples, constant loops and
// avoidable writes.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace torchlayers::graph {

// How a structure is built from a flat list of values: "value", "tuple" or "list", or the name of a
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
  // Those that the graph writes to: it returns their new values after its own outputs.
  std::vector<size_t> written;
  std::vector<Structure> inputs;
  Structure output;
};

// A prepared copy of the graph. `self` is the module if the graph is a method's, or None. A trace
// records the properties of its example call in its types; with keep_types these are taken as
// facts. Examples, one for each input but self, give the lengths of lists and the dtypes of
// tensors.
Prepared prepare(
    const torch::jit::Graph& graph,
    const c10::IValue& self,
    bool keep_types,
    const std::optional<std::vector<c10::IValue>>& examples);

} // namespace torchlayers::graph
