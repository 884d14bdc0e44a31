#include "graph/reverse/captures.h"

#include <torch/csrc/jit/ir/alias_analysis.h>

#include <algorithm>

#include "graph/errors.h"

namespace torchlayers::graph {

using torch::jit::AliasDb;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;

namespace {

bool is_read_in(const Value* value, const Block& reverse) {
  return std::any_of(value->uses().begin(), value->uses().end(), [&](const Use& use) {
    return is_inside(use.user, reverse);
  });
}

void collect_writes(Block& block, std::vector<Node*>& writes) {
  for (Node* node : block.nodes()) {
    const auto* schema = node->maybeSchema();
    if (schema != nullptr && schema->is_mutable()) {
      writes.push_back(node);
    }
    for (Block* inner : node->blocks()) {
      collect_writes(*inner, writes);
    }
  }
}

bool is_graph_input(const Value* value) {
  return value->node()->kind() == c10::prim::Param;
}

} // namespace

const Value* root_of(const Value* value) {
  for (;;) {
    const auto* schema = value->node()->maybeSchema();
    if (schema == nullptr || schema->arguments().empty() || schema->returns().size() != 1 ||
        schema->returns()[0].alias_info() == nullptr ||
        schema->arguments()[0].alias_info() == nullptr) {
      return value;
    }
    value = value->node()->input(0);
  }
}

bool is_inside(const Node* node, const Block& block) {
  for (const Block* around = node->owningBlock(); around != nullptr;
       around = around->owningNode() ? around->owningNode()->owningBlock() : nullptr) {
    if (around == &block) {
      return true;
    }
  }
  return false;
}

std::vector<Value*> captures_of(Block& forward, const Block& reverse) {
  std::vector<Value*> captures;
  const auto visit = [&](at::ArrayRef<Value*> values) {
    for (Value* value : values) {
      if (is_read_in(value, reverse)) {
        captures.push_back(value);
      }
    }
  };
  visit(forward.inputs());
  for (Node* node : forward.nodes()) {
    visit(node->outputs());
  }
  return captures;
}

void replace_uses_in(const Block& block, Value* value, Value* by) {
  const auto uses = value->uses();
  for (const Use& use : uses) {
    if (is_inside(use.user, block)) {
      use.user->replaceInput(use.offset, by);
    }
  }
}

void check_captures_keep(Graph& graph, const Block& reverse) {
  std::vector<Node*> writes;
  collect_writes(*graph.block(), writes);
  if (writes.empty()) {
    return;
  }
  const AliasDb aliases(graph.shared_from_this());
  const auto captures = captures_of(*graph.block(), reverse);
  const torch::jit::ValueSet captured(captures.begin(), captures.end());
  for (Node* write : writes) {
    // AliasDb assumes that any two inputs alias. A module's tensors don't, and neither do a
    // caller's if they are different tensors.
    const Value* root = root_of(write->input(0));
    const bool overwritten =
        is_graph_input(root) ? std::any_of(
                                   captures.begin(),
                                   captures.end(),
                                   [&](const Value* capture) { return root_of(capture) == root; })
                             : aliases.writesToAlias(write, captured);
    if (overwritten) {
      refuse(
          *write,
          "it writes to a value that the backward graph reads",
          "Use the out-of-place operator.");
    }
  }
}

} // namespace torchlayers::graph
