// Compiles TorchScript source that is part of this package.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace torchlayers::graph {

struct Parameter {
  std::string name;
  std::string type; // in TorchScript's notation: "List[int]"
};

// Functions that derivatives and compositions share, in TorchScript (helpers.cpp).
const char* helper_functions();

// The graph of a function with this body, with calls inlined. It may call the helpers. Graphs are
// cached: each source is compiled once.
std::shared_ptr<torch::jit::Graph> compiled(
    const std::vector<Parameter>& parameters, const std::string& body);

// The identifiers in some source, each once, in order; without attributes (after a dot).
std::vector<std::string> names_in(const std::string& source);

} // namespace torchlayers::graph
