// A table of derivatives in TorchScript, one operator per line: of operators that csrc/rules lacks,
// because layers meet others in their place, and of those whose lines there depend on what a graph
// does not know, such as a number of dimensions (lines.h).
//
// NOTE [The names in a rule]
// A derivative is TorchScript. It may use the operator's arguments, by their names in the schema,
// and
//   grad, grad1, ...   the cotangents of its outputs
//   result, result1 …  its outputs
//   x_size             the value of x.size() in the forward graph
//   x_reduced          None, or x's size if the result was broadcast to another size
//   x_dtype, x_device  those of x
//   x_needed           whether x requires grad (a constant)
// and the names that the rule's forward line defines. A derivative captures whatever it names, so
// it should name sizes where they are sufficient.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/gradients/node_gradient.h"

namespace torchlayers::graph {

struct Derivative {
  std::string inputs; // "self", or several with one expression: "input, weight"
  std::string expression;
};

struct GraphRule {
  std::string op; // as in "aten::slice.Tensor"
  std::vector<Derivative> derivatives;
  // "result, saved = torch.other_operator(...)": replaces the operator by one that returns more.
  // Without derivatives, its lines in csrc/rules are used.
  std::string forward = "";
};

using GraphRules = std::vector<GraphRule>;
GraphRules composite_rules();
GraphRules reduction_rules();

// An operator's name with its overload name, as in the tables.
std::string full_name(const c10::FunctionSchema& schema);

// "result", "result1", ...
std::string name_of_result(size_t place);

// The operators that have a rule, for tests, which fail if one is unused.
std::vector<std::string> rule_names();

// The rule for this node's operator, or nullptr.
const GraphRule* rule_for(const torch::jit::Node& node);

// Inserts the derivatives of the inputs that are needed at the graph's insert point, and the values
// of the forward pass that they need next to the node.
NodeGradient insert_rule(
    const GraphRule& rule,
    torch::jit::Node& node,
    at::ArrayRef<torch::jit::Value*> cotangents,
    const std::function<bool(torch::jit::Value*)>& is_needed);

// The same by the lines of csrc/rules; nothing if they give no formula (lines.h).
std::optional<NodeGradient> insert_lines(
    torch::jit::Node& node,
    at::ArrayRef<torch::jit::Value*> cotangents,
    const std::function<bool(torch::jit::Value*)>& is_needed);

} // namespace torchlayers::graph
