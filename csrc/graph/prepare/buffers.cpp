#include "graph/prepare/buffers.h"

#include <torch/csrc/jit/ir/constants.h>

#include <unordered_set>

#include "graph/reverse/captures.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;

namespace {

// The schema of batch_norm does not say that it updates the running statistics.
bool updates_statistics(const Node& node) {
  return node.kind() == aten::batch_norm &&
         torch::jit::constant_as<bool>(node.namedInput("training")).value_or(true);
}

void collect_written(Block& block, std::unordered_set<const Value*>& written) {
  for (Node* node : block.nodes()) {
    for (Block* inner : node->blocks()) {
      collect_written(*inner, written);
    }
    if (updates_statistics(*node)) {
      written.insert(node->namedInput("running_mean"));
      written.insert(node->namedInput("running_var"));
    }
    const auto* schema = node->maybeSchema();
    if (schema == nullptr || !schema->is_mutable()) {
      continue;
    }
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const auto* alias = schema->arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) {
        written.insert(root_of(node->input(i)));
      }
    }
  }
}

// Whether the node reads the buffer, and returns nothing that shares its memory.
bool only_reads(const Node& node, const Value* buffer) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr || schema->is_vararg() || updates_statistics(node)) {
    return false;
  }
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    if (node.input(i) == buffer && schema->arguments()[i].alias_info() != nullptr) {
      return false;
    }
  }
  return true;
}

// The first node, of the graph's own block, that may do more than read the buffer.
Node* first_that_may_write(Graph& graph, Value* buffer) {
  Node* first = graph.return_node();
  for (const auto& use : buffer->uses()) {
    if (only_reads(*use.user, buffer)) {
      continue;
    }
    Node* user = use.user;
    while (user->owningBlock() != graph.block()) {
      user = user->owningBlock()->owningNode();
    }
    if (user->isBefore(first)) {
      first = user;
    }
  }
  return first;
}

} // namespace

std::vector<size_t> return_buffers(Graph& graph, size_t bound) {
  std::unordered_set<const Value*> written;
  collect_written(*graph.block(), written);
  std::vector<size_t> positions;
  const size_t own = graph.inputs().size() - bound;
  for (size_t i = 0; i < bound; ++i) {
    Value* buffer = graph.inputs()[own + i];
    if (written.count(buffer) > 0) {
      const WithInsertPoint before(first_that_may_write(graph, buffer));
      Value* clone = graph.insert(aten::clone, {buffer})->setType(buffer->type());
      buffer->replaceAllUsesAfterNodeWith(clone->node(), clone);
      graph.registerOutput(clone);
      positions.push_back(i);
    }
  }
  return positions;
}

} // namespace torchlayers::graph
