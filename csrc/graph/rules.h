// Derivatives that torch's symbolic gradients leave out, as a table: a line an operator.
//
// NOTE [The names in a rule]
// A derivative is TorchScript. Its names are the operator's arguments as in its schema, and
//   grad, grad1, ...   the cotangents of its outputs
//   result, result1 …  its outputs
//   x_size             what x.size() was in the forward graph
//   x_reduced          None, or x's size where the result was broadcast to another
//   x_dtype, x_device  what they were
//   x_needed           whether x requires grad (a constant)
// and what the rule's forward line defines. Whatever a derivative names is what it captures,
// so it names sizes where sizes do.
// Where a line of csrc/rules comes to that but for its spelling, it is taken from there
// (rules/shared.cpp).
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <string>
#include <vector>

#include "graph/node_gradient.h"

namespace torchlayers::graph {

struct Derivative {
  std::string inputs; // "self", or several that one expression gives: "input, weight"
  std::string expression;
};

struct GraphRule {
  std::string op; // as in "aten::slice.Tensor"
  std::vector<Derivative> derivatives;
  // "result, saved = torch.other_operator(...)": replaces the operator by one that returns more.
  std::string forward = "";
};

using GraphRules = std::vector<GraphRule>;
GraphRules shared_rules();
GraphRules elementwise_rules();
GraphRules reduction_rules();
GraphRules shape_rules();
GraphRules linear_algebra_rules();
GraphRules neural_rules();
GraphRules loss_rules();

// An operator's name with its overload's, as the tables have it.
std::string full_name(const c10::FunctionSchema& schema);

// The operators that have one, for the tests: a rule that none of them uses is a failure.
std::vector<std::string> rule_names();

// The rule for this node's operator, or nullptr.
const GraphRule* rule_for(const torch::jit::Node& node);

// Inserts the derivatives of the inputs that are asked for at the graph's insert point, and
// what they read of the forward pass beside the node.
NodeGradient insert_rule(
    const GraphRule& rule,
    torch::jit::Node& node,
    at::ArrayRef<torch::jit::Value*> cotangents,
    const std::function<bool(torch::jit::Value*)>& is_needed);

} // namespace torchlayers::graph
