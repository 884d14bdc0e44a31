// Gradients from the lines of csrc/rules, which are evaluated on symbolic values.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <bitset>
#include <memory>
#include <string>
#include <vector>

#include "graph/gradients/node_gradient.h"

namespace torchlayers::graph {

// A graph that computes the gradients with respect to some arguments, in their order; one without a
// gradient has null. Its inputs are named as in NOTE [The names in a rule], and a member of a list
// is "indices#0".
struct LineFormula {
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<std::string> names;
  std::vector<size_t> arguments;
};

// The formula for the gradients with respect to these arguments; null if there are no lines for
// them, or if they depend on what a graph does not know (NOTE [Symbolic values]). Formulas are
// cached, by the operator and its constants.
const LineFormula* line_formula(const torch::jit::Node& node, const std::bitset<64>& arguments);

// Whether this result has a derivative, if there are lines.
bool lines_differentiate(const torch::jit::Node& node, size_t output);

} // namespace torchlayers::graph
