#include "graph/reverse/constants.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph/reverse/captures.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;
namespace prim = c10::prim;

namespace {

// A list that is appended to later is not determined by its construction.
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
  Lift(const Block& forward, Block& reverse) : forward_(forward), reverse_(reverse) {}

  void run() {
    visit(reverse_);
    for (auto it = lifted_.rbegin(); it != lifted_.rend(); ++it) {
      reverse_.prependNode(it->second);
    }
    // A constant may have thousands of uses, and finding one among them takes as many steps. So all
    // uses inside are replaced at once.
    for (const auto& [value, copy] : lifted_) {
      value->replaceAllUsesDominatedByNodeWith(copy, copy->output());
    }
  }

 private:
  void visit(Block& block) {
    for (Node* node : block.nodes()) {
      visit(*node);
    }
    visit(*block.return_node());
  }

  void visit(Node& node) {
    for (Value* input : node.inputs()) {
      lift(input);
    }
    for (Block* inner : node.blocks()) {
      visit(*inner);
    }
  }

  void lift(Value* value) {
    if (!seen_.insert(value).second || !is_liftable(value) || !is_inside(value->node(), forward_)) {
      return;
    }
    Node* node = value->node();
    for (Value* member : node->inputs()) {
      lift(member);
    }
    Node* copy = reverse_.owningGraph()->createClone(node, [](Value* member) { return member; });
    lifted_.emplace_back(value, copy);
  }

  const Block& forward_;
  Block& reverse_;
  std::unordered_set<const Value*> seen_;
  std::vector<std::pair<Value*, Node*>> lifted_; // members come before their lists
};

} // namespace

void lift_constants(const Block& forward, Block& reverse) {
  Lift(forward, reverse).run();
}

} // namespace torchlayers::graph
