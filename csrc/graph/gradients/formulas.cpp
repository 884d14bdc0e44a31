#include "graph/gradients/formulas.h"

#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/lower_tuples.h>

#include <mutex>
#include <unordered_map>

namespace torchlayers::graph {

using torch::jit::GradientPair;
using torch::jit::Graph;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

std::shared_ptr<Graph> inlined(const Graph& formula) {
  auto graph = std::const_pointer_cast<Graph>(formula.shared_from_this())->copy();
  torch::jit::Inline(*graph);
  torch::jit::ConstantPropagation(graph);
  return graph;
}

void clean(const std::shared_ptr<Graph>& graph) {
  torch::jit::LowerSimpleTuples(graph);
  torch::jit::EliminateDeadCode(graph->block());
}

std::vector<Value*> members(Graph& graph, Value* tuple) {
  return graph.insertNode(graph.createTupleUnpack(tuple))->outputs().vec();
}

// The formula returns a tuple of the results, the last of which is a tuple: the context.
std::shared_ptr<Graph> flat_forward(const Graph& formula) {
  auto graph = inlined(formula);
  auto values = members(*graph, graph->outputs().at(0));
  const auto context = members(*graph, values.back());
  values.pop_back();
  values.insert(values.end(), context.begin(), context.end());
  graph->block()->removeAllOutputs();
  for (Value* value : values) {
    graph->registerOutput(value);
  }
  clean(graph);
  return graph;
}

// The formula takes the context as a tuple.
std::shared_ptr<Graph> flat_backward(const Graph& formula) {
  auto graph = inlined(formula);
  const WithInsertPoint first(*graph->nodes().begin());
  Value* context = graph->inputs().at(0);
  std::vector<Value*> inputs;
  for (const auto& type : context->type()->containedTypes()) {
    inputs.push_back(graph->block()->insertInput(inputs.size())->setType(type));
  }
  Value* tuple = graph->insertNode(graph->createTuple(inputs))->output();
  context = graph->inputs().at(inputs.size());
  context->replaceAllUsesWith(tuple);
  graph->eraseInput(inputs.size());
  clean(graph);
  return graph;
}

} // namespace

const GradientPair& formula_for(const c10::FunctionSchema& schema) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<const Graph*, GradientPair>();
  const auto formula = torch::jit::gradientInfoForSchema(schema);
  TORCH_INTERNAL_ASSERT(formula, "no formula for ", schema);
  const std::lock_guard<std::mutex> guard(mutex);
  // torch never frees its formulas, so their addresses identify them.
  auto& entry = (*known)[formula->forward.get()];
  if (!entry.forward) {
    entry = {flat_forward(*formula->forward), flat_backward(*formula->backward)};
  }
  return entry;
}

} // namespace torchlayers::graph
