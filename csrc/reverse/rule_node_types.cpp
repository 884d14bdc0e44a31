// The types of our nodes.
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/hooks.h"
#include "reverse/node_names.h"
#include "reverse/rule_node.h"

namespace torchlayers {

// NOTE [Types of nodes]
// To Python a node is an object of a class that belongs to its C++ type, and tools go by the name
// of that class: type(grad_fn).__name__. torch has a type for each of its nodes. So our nodes have
// one of these types, a number for each name, which Python is told of when the first such node is
// made. They differ in nothing else. Where all numbers are given away, nodes have the last, which
// is nameless; name() knows even then.
template <size_t Number>
class NumberedNode final : public RuleNode {
 public:
  using RuleNode::RuleNode;
};

namespace {

constexpr size_t kNumbers = 512;

using MakeNode =
    NodePointer<RuleNode> (*)(const Operator&, const VjpRule&, const Args&, const Layer&);

template <size_t Number>
NodePointer<RuleNode> make(
    const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer) {
  using Numbered = NumberedNode<Number>;
  if constexpr (std::is_same_v<NodePointer<Numbered>, std::shared_ptr<Numbered>>) {
    return std::shared_ptr<Numbered>(
        new Numbered(op, rule, args, layer), [](Numbered* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Numbered>(op, rule, args, layer);
  }
}

struct NodeType {
  MakeNode make;
  const std::type_info* type;
};

template <size_t... Number>
std::array<NodeType, sizeof...(Number)> all_types(std::index_sequence<Number...>) {
  return {NodeType{&make<Number>, &typeid(NumberedNode<Number>)}...};
}

const std::array<NodeType, kNumbers> types = all_types(std::make_index_sequence<kNumbers>());

// The type of the operator's nodes, which is that of all of their name.
const NodeType& type_of(const Operator& op) {
  static std::mutex mutex;
  static auto* numbers = new std::unordered_map<std::string, size_t>(); // outlives late threads
  const std::string name = node_name(op);
  size_t number = kNumbers - 1;
  bool is_new = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = numbers->find(name);
    if (found != numbers->end()) {
      number = found->second;
    } else if (numbers->size() < kNumbers - 1) {
      number = numbers->size();
      numbers->emplace(name, number);
      is_new = true;
    }
  }
  if (is_new) { // unlocked: it waits for the interpreter
    hooks.name_type_of_nodes(*types[number].type, name);
  }
  return types[number];
}

// What this thread knows of it. Operators stay where they are for ever.
const NodeType& known_type_of(const Operator& op) {
  struct Known {
    const Operator* op = nullptr;
    const NodeType* type = nullptr;
  };
  thread_local std::array<Known, 256> all_known;
  const auto address = reinterpret_cast<uintptr_t>(&op);
  Known& known = all_known[(address / alignof(Operator) ^ address / 4096) % all_known.size()];
  if (C10_UNLIKELY(known.op != &op)) {
    known = {&op, &type_of(op)};
  }
  return *known.type;
}

// What the names of all those types, as C++ has them, begin with.
size_t length_of_common_name() {
  const char* first = typeid(NumberedNode<0>).name();
  const char* second = typeid(NumberedNode<1>).name();
  size_t length = 0;
  while (first[length] == second[length]) {
    ++length;
  }
  return length;
}

} // namespace

NodePointer<RuleNode> make_rule_node(
    const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer) {
  return known_type_of(op).make(op, rule, args, layer);
}

// A dynamic_cast would look up the hierarchy of every node of a pass.
RuleNode* rule_node_of(torch::autograd::Node& node) {
  static const size_t length = length_of_common_name();
  const bool is_ours =
      std::strncmp(typeid(node).name(), typeid(NumberedNode<0>).name(), length) == 0;
  return is_ours ? static_cast<RuleNode*>(&node) : nullptr;
}

} // namespace torchlayers
