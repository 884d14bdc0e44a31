#include "constants.h"

#include <algorithm>
#include <unordered_map>

#include "captures.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;
namespace prim = c10::prim;

namespace {

// A list that is appended to later on is more than it was put together of.
bool is_written(const Value* value) {
  return std::any_of(value->uses().begin(), value->uses().end(), [](const Use& use) {
    const auto* schema = use.user->maybeSchema();
    return schema != nullptr && schema->is_mutable();
  });
}

bool is_liftable(const Value* value) {
  const auto kind = value->node()->kind();
  return kind == prim::Constant || (kind == prim::ListConstruct && !is_written(value));
}

class Lift {
 public:
  explicit Lift(Block& into) : into_(into) {}

  void visit(Block& block) {
    for (Node* node : block.nodes()) {
      visit(*node);
    }
    visit(*block.return_node());
  }

 private:
  void visit(Node& node) {
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      if (Value* copy = copied(node.input(i))) {
        node.replaceInput(i, copy);
      }
    }
    for (Block* inner : node.blocks()) {
      visit(*inner);
    }
  }

  // nullptr for a value that stays where it is.
  Value* copied(Value* value) {
    const auto known = copies_.find(value);
    if (known != copies_.end()) {
      return known->second;
    }
    Node* node = value->node();
    if (!is_liftable(value) || is_inside(node, into_)) {
      return nullptr;
    }
    Node* copy = into_.owningGraph()->createClone(node, [&](Value* member) {
      Value* lifted = copied(member);
      return lifted == nullptr ? member : lifted;
    });
    if (last_ == nullptr) {
      into_.prependNode(copy);
    } else {
      copy->insertAfter(last_);
    }
    last_ = copy;
    return copies_[value] = copy->output();
  }

  Block& into_;
  Node* last_ = nullptr;
  std::unordered_map<Value*, Value*> copies_;
};

} // namespace

void lift_constants(Block& reverse) {
  Lift(reverse).visit(reverse);
}

} // namespace torchlayers::graph
