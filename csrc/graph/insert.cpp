#include "graph/insert.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/loop_unrolling.h>

#include <map>
#include <mutex>
#include <sstream>

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

void set_source(Node& node, const Node& of) {
  node.copyMetadata(const_cast<Node*>(&of)); // it is not modified
  for (Block* block : node.blocks()) {
    for (Node* inner : block->nodes()) {
      set_source(*inner, of);
    }
  }
}

std::optional<c10::IValue> constant_input(const Value* input) {
  const bool is_constant = input->node()->kind() == c10::prim::Constant &&
                           input->type()->kind() != c10::TypeKind::TensorType;
  return is_constant ? torch::jit::toIValue(input) : std::nullopt;
}

bool branches(const Graph& formula) {
  for (const Node* node : formula.nodes()) {
    if (!node->blocks().empty()) {
      return true;
    }
  }
  return false;
}

// The constants among some inputs, as a text that identifies them. Tensors are omitted, because no
// decision depends on one.
std::string constants_among(at::ArrayRef<Value*> inputs) {
  std::ostringstream text;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const auto constant = constant_input(inputs[i])) {
      text << i << ":" << constant->tagKind() << " " << *constant << ";";
    }
  }
  return text.str();
}

std::shared_ptr<Graph> with_constants(Graph& formula, at::ArrayRef<Value*> inputs) {
  auto graph = formula.copy();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const auto constant = constant_input(inputs[i])) {
      const WithInsertPoint first(*graph->nodes().begin());
      graph->inputs()[i]->replaceAllUsesWith(graph->insertConstant(*constant));
    }
  }
  torch::jit::ConstantPropagation(graph);
  if (torch::jit::UnrollConstantLoops(graph)) {
    torch::jit::ConstantPropagation(graph);
  }
  torch::jit::EliminateDeadCode(graph->block());
  return graph;
}

// The formula with its constant inputs substituted, so that branches on them are resolved and the
// values that other branches read are not captured. Cached: a graph often has the same operator
// with the same constants, and this takes a millisecond.
Graph& decided(Graph& formula, at::ArrayRef<Value*> inputs) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<const Graph*, std::string>, std::shared_ptr<Graph>>();
  const std::lock_guard<std::mutex> guard(mutex);
  auto& graph = (*known)[{&formula, constants_among(inputs)}];
  if (!graph) {
    graph = with_constants(formula, inputs);
  }
  return *graph;
}

} // namespace

std::vector<Value*> insert_formula(
    Graph& graph, Graph& formula, at::ArrayRef<Value*> inputs, const Node& of) {
  Node* before = graph.insertPoint()->prev();
  Graph& inserted = branches(formula) ? decided(formula, inputs) : formula;
  const auto outputs = torch::jit::unpackOutputs(torch::jit::insertGraph(graph, inserted, inputs));
  for (Node* node = before->next(); node != graph.insertPoint(); node = node->next()) {
    set_source(*node, of);
  }
  return outputs;
}

} // namespace torchlayers::graph
