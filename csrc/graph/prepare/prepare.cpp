#include "graph/prepare/prepare.h"

#include <torch/csrc/jit/passes/canonicalize_graph_fuser_ops.h>
#include <torch/csrc/jit/passes/common_subexpression_elimination.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/loop_unrolling.h>
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/peephole_list_idioms.h>
#include <torch/csrc/jit/passes/remove_mutation.h>
#include <torch/csrc/jit/passes/shape_analysis.h>

#include <algorithm>

#include "graph/prepare/buffers.h"
#include "graph/prepare/lower_module.h"
#include "graph/prepare/rewrites.h"
#include "graph/prepare/structure.h"
#include "graph/prepare/writes.h"
#include "graph/tracked.h"

namespace torchlayers::graph {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

bool has_input_requiring_grad(const Graph& graph) {
  const auto inputs = graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [](const Value* input) {
    return may_require_grad(input->type());
  });
}

void simplify(std::shared_ptr<Graph>& graph) {
  // One pass may enable another: a loop's bound may become constant after a length does.
  bool changed = true;
  for (int turn = 0; turn < 3 && changed; ++turn) {
    torch::jit::ConstantPropagation(graph);
    torch::jit::LowerSimpleTuples(graph);
    changed = torch::jit::UnrollConstantLoops(graph);
    changed |= torch::jit::RemoveListMutation(graph);
    changed |= torch::jit::PeepholeOptimizeListIdioms(graph);
  }
  torch::jit::LowerSimpleTuples(graph);
  torch::jit::RemoveTensorMutation(graph);
  torch::jit::CanonicalizeOps(graph);
  torch::jit::EliminateCommonSubexpression(graph); // so that a value is captured once
  torch::jit::EliminateDeadCode(graph->block());
}

} // namespace

Prepared prepare(
    const Graph& given,
    const c10::IValue& self,
    bool keep_types,
    const std::optional<std::vector<c10::IValue>>& examples) {
  Prepared prepared;
  auto graph = std::const_pointer_cast<Graph>(given.shared_from_this())->copy();
  torch::jit::Inline(*graph);
  if (!keep_types) {
    torch::jit::EraseShapeInformation(graph);
  } else if (!has_input_requiring_grad(*graph)) {
    // The trace saw only tensors that don't require grad, but the caller differentiates the graph.
    forget_requires_grad(*graph->block());
  }
  if (!self.isNone()) {
    prepared.bound = lower_module(*graph, self);
  }
  const size_t bound = prepared.bound.size();
  prepared.inputs = flatten_inputs(*graph, examples);
  prepared.inputs.resize(prepared.inputs.size() - bound);
  rewrite(*graph);
  simplify(graph);
  remove_writes(*graph->block());
  prepared.output = flatten_outputs(*graph);
  prepared.written = return_buffers(*graph, bound);
  torch::jit::EliminateDeadCode(graph->block());
  prepared.graph = graph;
  return prepared;
}

} // namespace torchlayers::graph
