#include "insert.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

void set_source(Node& node, const Node& of) {
  node.copyMetadata(const_cast<Node*>(&of)); // it is only read
  for (Block* block : node.blocks()) {
    for (Node* inner : block->nodes()) {
      set_source(*inner, of);
    }
  }
}

bool branches(const Graph& formula) {
  for (const Node* node : formula.nodes()) {
    if (!node->blocks().empty()) {
      return true;
    }
  }
  return false;
}

// The formula with those of its inputs that are constants put in, so that what it decides by
// them is decided, and what the other branches read is not captured.
std::shared_ptr<Graph> specialised(Graph& formula, at::ArrayRef<Value*> inputs) {
  auto graph = formula.copy();
  const WithInsertPoint first(*graph->nodes().begin());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->node()->kind() == c10::prim::Constant) {
      graph->inputs()[i]->replaceAllUsesWith(
          graph->insertConstant(*torch::jit::toIValue(inputs[i])));
    }
  }
  torch::jit::ConstantPropagation(graph);
  torch::jit::EliminateDeadCode(graph->block());
  return graph;
}

} // namespace

std::vector<Value*> insert_formula(
    Graph& graph, Graph& formula, at::ArrayRef<Value*> inputs, const Node& of) {
  Node* before = graph.insertPoint()->prev();
  const auto outputs = torch::jit::unpackOutputs(torch::jit::insertGraph(graph, formula, inputs));
  for (Node* node = before->next(); node != graph.insertPoint(); node = node->next()) {
    set_source(*node, of);
  }
  return outputs;
}

} // namespace torchlayers::graph
