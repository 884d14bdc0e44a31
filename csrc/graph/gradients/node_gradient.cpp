#include "graph/gradients/node_gradient.h"

#include "graph/differentiable.h"
#include "graph/errors.h"
#include "graph/gradients/formulas.h"
#include "graph/gradients/handwritten.h"
#include "graph/insert.h"
#include "graph/rules/rules.h"

namespace torchlayers::graph {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace prim = c10::prim;

namespace {

NodeGradient symbolic_gradient(Node& node, const std::vector<Value*>& cotangents) {
  Graph& graph = *node.owningGraph();
  const auto& formula = formula_for(node.schema());
  NodeGradient gradient;
  std::vector<Value*> arguments; // of the backward graph: the context and the cotangents
  {
    const WithInsertPoint forward(node.next());
    gradient.outputs = insert_formula(graph, *formula.forward, node.inputs(), node);
    const auto context = gradient.outputs.begin() + int64_t(node.outputs().size());
    arguments.assign(context, gradient.outputs.end());
    gradient.outputs.erase(context, gradient.outputs.end());
  }
  const size_t taken = formula.backward->inputs().size() - arguments.size();
  TORCH_INTERNAL_ASSERT(taken == cotangents.size() || is_trimmed(node));
  arguments.insert(arguments.end(), cotangents.begin(), cotangents.begin() + int64_t(taken));
  gradient.inputs = insert_formula(graph, *formula.backward, arguments, node);
  return gradient;
}

std::string why_not(const Node& node) {
  if (node.kind() == prim::Loop) {
    return "the number of iterations of this loop is only known at run time, and gradients flow "
           "through it";
  }
  if (node.kind() == prim::PythonOp) {
    return "Python code inside a scripted function can't be inspected";
  }
  if (node.kind() == prim::TupleConstruct || node.kind() == prim::DictConstruct ||
      node.kind() == prim::TupleUnpack || node.kind() == prim::TupleIndex) {
    return "gradients don't flow through a tuple or dict that is not unpacked";
  }
  return "no formula for its gradient is known";
}

std::string remedy(const Node& node) {
  if (node.kind() == prim::Loop) {
    return "Loop over a constant range, or trace the function.";
  }
  if (node.kind() == prim::PythonOp) {
    return "Script that function too.";
  }
  return "Write it with other operators, or put it under torch.no_grad() or detach its result "
         "if its gradient is not wanted.";
}

} // namespace

NodeGradient gradient_of(
    Node& node,
    const std::vector<Value*>& cotangents,
    const std::function<bool(Value*)>& is_needed) {
  if (is_handwritten(node)) {
    return {handwritten_gradient(node, cotangents), node.outputs().vec()};
  }
  if (const GraphRule* rule = rule_for(node)) {
    return insert_rule(*rule, node, cotangents, is_needed);
  }
  if (auto gradient = insert_lines(node, cotangents, is_needed)) {
    return *gradient;
  }
  const auto* schema = node.maybeSchema();
  if (schema == nullptr || !torch::jit::hasGradientInfoForSchema(*schema)) {
    refuse(node, why_not(node), remedy(node));
  }
  return symbolic_gradient(node, cotangents);
}

} // namespace torchlayers::graph
