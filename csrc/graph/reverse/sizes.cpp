#include "graph/reverse/sizes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "core/torch_versions.h"
#include "graph/reverse/captures.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

// Whether the node's result depends only on a tensor's metadata.
bool asks_shape(const Node& node) {
  return node.inputs().size() >= 1 && node.outputs().size() == 1 &&
         node.input(0)->type()->kind() == c10::TypeKind::TensorType &&
         (node.kind() == aten::size || node.kind() == kNumel || node.kind() == aten::dim ||
          node.kind() == prim::dtype || node.kind() == prim::device);
}

bool is_question(const Node& node) {
  return asks_shape(node) || node.kind() == aten::_size_if_not_equal;
}

std::optional<std::vector<int64_t>> known_size(const Value* size) {
  const Node* node = size->node();
  if (node->kind() != aten::size || node->inputs().size() != 1) {
    return std::nullopt;
  }
  const auto type = node->input()->type()->cast<c10::TensorType>();
  return type ? type->sizes().concrete_sizes() : std::nullopt;
}

void fold(Node& node) {
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const Node* question = node.input(i)->node();
    if (question->kind() != aten::_size_if_not_equal) {
      continue;
    }
    const auto before = known_size(question->input(0));
    const auto after = known_size(question->input(1));
    if (before && after) {
      const WithInsertPoint here(&node);
      Graph& graph = *node.owningGraph();
      node.replaceInput(
          i,
          *before == *after ? graph.insertConstant(c10::IValue()) : graph.insertConstant(*before));
    }
  }
  for (Block* inner : node.blocks()) {
    fold_sizes(*inner);
  }
}

// Two constants may be equal without being the same value.
std::string key_of(const Node& node) {
  std::string key = node.kind().toQualString();
  for (const Value* input : node.inputs()) {
    const auto constant = torch::jit::toIValue(input);
    key += constant && constant->isInt() ? " =" + std::to_string(constant->toInt())
                                         : " " + std::to_string(input->unique());
  }
  return key;
}

bool is_read_only_in(const Value* value, const Block& reverse) {
  return std::all_of(value->uses().begin(), value->uses().end(), [&](const Use& use) {
    return is_inside(use.user, reverse);
  });
}

// Moves the queries of this tensor from the reverse block to the forward graph.
void ask_forward(Block& forward, Block& reverse, Value* tensor) {
  std::vector<Node*> questions;
  for (const Use& use : tensor->uses()) {
    if (!is_inside(use.user, reverse)) {
      continue;
    }
    Node* node = use.user;
    const auto rest = node->inputs().slice(1);
    const bool movable = asks_shape(*node) && use.offset == 0 &&
                         std::all_of(rest.begin(), rest.end(), [](const Value* argument) {
                           return argument->node()->kind() == prim::Constant;
                         });
    if (!movable) {
      return;
    }
    questions.push_back(node);
  }
  Graph& graph = *forward.owningGraph();
  for (Node* node : questions) {
    const WithInsertPoint after(
        tensor->node() == forward.param_node() ? *forward.nodes().begin() : tensor->node()->next());
    Node* copy = graph.createClone(node, [&](Value* input) {
      return input == tensor ? tensor : graph.insertConstant(*torch::jit::toIValue(input));
    });
    graph.insertNode(copy);
    node->output()->replaceAllUsesWith(copy->output());
    node->destroy();
  }
}

// Computes these values in the reverse block, from tensors that are captured anyway.
void ask_in_reverse(Block& reverse, const std::vector<Value*>& answers) {
  Graph& graph = *reverse.owningGraph();
  std::vector<Node*> copies;
  for (Value* answer : answers) {
    copies.push_back(graph.createClone(answer->node(), [&](Value* input) {
      if (input->node()->kind() == prim::Constant) {
        copies.push_back(graph.createClone(input->node(), [](Value* none) { return none; }));
        input = copies.back()->output();
      }
      return input;
    }));
    answer->replaceAllUsesWith(copies.back()->output());
    answer->node()->destroy();
  }
  for (auto it = copies.rbegin(); it != copies.rend(); ++it) {
    reverse.prependNode(*it);
  }
}

} // namespace

void fold_sizes(Block& reverse) {
  for (Node* node : reverse.nodes()) {
    fold(*node);
  }
  fold(*reverse.return_node());
}

void merge_sizes(Block& forward) {
  std::map<std::string, Value*> known;
  for (auto it = forward.nodes().begin(); it != forward.nodes().end(); ++it) {
    if (!is_question(**it)) {
      continue;
    }
    const auto [entry, is_new] = known.emplace(key_of(**it), it->output());
    if (!is_new) {
      it->output()->replaceAllUsesWith(entry->second);
      it.destroyCurrent();
    }
  }
}

void place_sizes(Block& forward, Block& reverse) {
  for (Value* value : captures_of(forward, reverse)) {
    if (value->type()->kind() == c10::TypeKind::TensorType) {
      ask_forward(forward, reverse, value);
    }
  }
  merge_sizes(forward);
  const auto captures = captures_of(forward, reverse);
  const std::unordered_set<const Value*> captured(captures.begin(), captures.end());
  std::vector<Value*> answers;
  for (Value* value : captures) {
    if (asks_shape(*value->node()) && captured.count(value->node()->input(0)) > 0 &&
        is_read_only_in(value, reverse)) {
      answers.push_back(value);
    }
  }
  ask_in_reverse(reverse, answers);
}

} // namespace torchlayers::graph
