#include "graph/prepare/writes.h"

#include <algorithm>
#include <string>
#include <vector>

namespace torchlayers::graph {

using c10::Symbol;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

bool is_part(const Node& node) {
  return node.kind() == aten::select || node.kind() == aten::slice;
}

bool asks_type(const Node& node) {
  return node.kind() == prim::dtype || node.kind() == prim::device || node.kind() == prim::layout;
}

// An operator that writes only to its first argument, and returns it.
bool writes_first(const Node& node) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr || !node.kind().is_aten() || node.outputs().size() != 1) {
    return false;
  }
  const std::string_view name = node.kind().toUnqualString();
  const auto is_written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  const auto& arguments = schema->arguments();
  return name.back() == '_' && !arguments.empty() && is_written(arguments[0]) &&
         std::count_if(arguments.begin(), arguments.end(), is_written) == 1;
}

// A tensor that does not alias another.
bool is_fresh(const Value& value) {
  const auto* schema = value.node()->maybeSchema();
  return schema != nullptr && value.node()->kind().is_aten() && !schema->is_mutable() &&
         schema->returns().at(value.offset()).alias_info() == nullptr;
}

// One write and the chain it goes through: `root`, parts of it, `target`.
class Write {
 public:
  explicit Write(Node& node) : node_(node), target_(node.input(0)), root_(target_) {
    while (is_part(*root_->node())) {
      parts_.push_back(root_->node());
      root_ = root_->node()->input(0);
    }
  }

  bool is_removable() const {
    return is_fresh(*root_) && root_->node()->owningBlock() == node_.owningBlock() &&
           is_in_the_roots_grad_mode() && is_not_seen_by_others(*root_);
  }

  void remove() {
    const WithInsertPoint here(&node_);
    Graph& graph = *node_.owningGraph();
    Value* whole = new_target(graph);
    for (Node* part : parts_) {
      std::vector<Value*> inputs = part->inputs().vec();
      inputs.insert(inputs.begin() + 1, whole);
      const auto kind = part->kind() == aten::select ? aten::select_scatter : aten::slice_scatter;
      whole = graph.insertNode(graph.create(kind, inputs))->output();
    }
    // Later writes to the target must reach the whole too, so it becomes a part again.
    Value* part = whole;
    for (auto it = parts_.rbegin(); it != parts_.rend(); ++it) {
      Node* again = graph.insertNode(graph.createClone(*it, [](Value* value) { return value; }));
      again->replaceInput(0, part);
      part = again->output();
    }
    node_.output()->replaceAllUsesWith(part);
    target_->replaceAllUsesAfterNodeWith(&node_, part);
    root_->replaceAllUsesAfterNodeWith(&node_, whole);
    node_.destroy();
  }

 private:
  // Autograd ignores a write under no_grad: gradients flow through the root as it was before.
  bool is_in_the_roots_grad_mode() const {
    for (const Node* node = root_->node(); node != &node_; node = node->next()) {
      if (node->kind() == prim::Enter || node->kind() == prim::Exit) {
        return false;
      }
    }
    return true;
  }

  // Later uses of the root and of the target get the new tensor. Other aliases of that memory must
  // not be used any more, and lists and branches may hold one for later.
  bool is_not_seen_by_others(const Value& value) const {
    return std::all_of(value.uses().begin(), value.uses().end(), [&](const Use& use) {
      const Node& user = *use.user;
      if (user.isAfter(&node_)) {
        return &value == root_ || &value == target_;
      }
      if (&user == &node_ || asks_type(user)) {
        return true;
      }
      const auto* schema = user.maybeSchema();
      if (schema == nullptr || !user.kind().is_aten() || schema->is_mutable()) {
        return false;
      }
      const bool aliased = schema->arguments().at(use.offset).alias_info() != nullptr;
      return !aliased ||
             std::all_of(user.outputs().begin(), user.outputs().end(), [this](const Value* view) {
               return is_not_seen_by_others(*view);
             });
    });
  }

  // The value of the target after the write.
  Value* new_target(Graph& graph) {
    if (node_.kind() == aten::zero_) {
      return graph.insert(aten::zeros_like, {target_});
    }
    const bool fills = node_.kind() == aten::fill_;
    if (fills && node_.input(1)->type()->kind() != c10::TypeKind::TensorType) {
      return graph.insert(aten::full_like, {target_, node_.input(1)});
    }
    if (fills || node_.kind() == aten::copy_) {
      Value* converted = graph.insert(aten::type_as, {node_.input(1), target_});
      return graph.insert(aten::expand_as, {converted, target_});
    }
    const std::string name = node_.kind().toQualString();
    const auto kind = Symbol::fromQualString(name.substr(0, name.size() - 1));
    return graph.insertNode(graph.create(kind, node_.inputs()))->output();
  }

  Node& node_;
  Value* target_;
  Value* root_;
  std::vector<Node*> parts_; // from the target to the root
};

} // namespace

void remove_writes(Block& block) {
  for (auto it = block.nodes().begin(); it != block.nodes().end();) {
    Node* node = *it++;
    for (Block* inner : node->blocks()) {
      remove_writes(*inner);
    }
    if (writes_first(*node)) {
      Write write(*node);
      if (write.is_removable()) {
        write.remove();
      }
    }
  }
}

} // namespace torchlayers::graph
