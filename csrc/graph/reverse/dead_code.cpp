#include "graph/reverse/dead_code.h"

#include <torch/csrc/jit/passes/dead_code_elimination.h>

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = c10::prim;

namespace {

bool has_effects(Node& node) {
  const auto* schema = node.maybeSchema();
  return node.hasSideEffects() || (schema != nullptr && schema->is_mutable());
}

void drop_dead_outputs(Node& node) {
  for (size_t i = node.outputs().size(); i-- > 0;) {
    if (!node.output(i)->hasUses()) {
      for (Block* block : node.blocks()) {
        block->eraseOutput(i);
      }
      node.eraseOutput(i);
    }
  }
}

bool contains_effects(Block& block) {
  for (Node* node : block.nodes()) {
    if (has_effects(*node)) {
      return true;
    }
    for (Block* inner : node->blocks()) {
      if (contains_effects(*inner)) {
        return true;
      }
    }
  }
  return false;
}

bool is_dead(Node& node) {
  if (node.hasUses() || has_effects(node)) {
    return false;
  }
  for (Block* block : node.blocks()) {
    if (node.kind() != prim::GradOf && contains_effects(*block)) {
      return false;
    }
  }
  return true;
}

void collect(Block& block, std::unordered_set<const Value*>& values) {
  values.insert(block.inputs().begin(), block.inputs().end());
  for (Node* node : block.nodes()) {
    values.insert(node->outputs().begin(), node->outputs().end());
  }
}

} // namespace

void remove_dead(Block& reverse) {
  for (Node* node = reverse.return_node()->prev(); node != reverse.param_node();) {
    Node* before = node->prev();
    if (is_dead(*node)) {
      node->destroy();
    } else {
      if (node->kind() == prim::GradOf || node->kind() == prim::If) {
        drop_dead_outputs(*node);
      }
      for (Block* inner : node->blocks()) {
        remove_dead(*inner);
      }
    }
    node = before;
  }
}

void remove_dead(Graph& graph, Reverse& reverse) {
  remove_dead(*reverse.block);
  torch::jit::EliminateDeadCode(graph.block());
  std::unordered_set<const Value*> in_forward;
  std::unordered_set<const Value*> in_reverse;
  collect(*graph.block(), in_forward);
  collect(*reverse.block, in_reverse);
  reverse.gradients.keep_only(in_forward, in_reverse);
}

} // namespace torchlayers::graph
