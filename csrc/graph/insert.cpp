#include "insert.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

void set_source(Node& node, const Node& of) {
  node.copyMetadata(const_cast<Node*>(&of)); // it is only read
  for (Block* block : node.blocks()) {
    for (Node* inner : block->nodes()) {
      set_source(*inner, of);
    }
  }
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
