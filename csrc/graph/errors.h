// Errors for graphs that can't be differentiated: the node, its source line, and the reason.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <stdexcept>
#include <string>

namespace torchlayers::graph {

// Python gets it as torchlayers.graph.GraphError.
struct GraphProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "torchlayers: can't differentiate aten::foo: <why>. In file.py:7, `source line`. <remedy>"
[[noreturn]] void refuse(
    const torch::jit::Node& node, const std::string& why, const std::string& remedy);

} // namespace torchlayers::graph
