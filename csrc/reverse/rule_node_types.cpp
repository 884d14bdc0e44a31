// The C++ types of our nodes, one for each name.
#include <array>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/callbacks.h"
#include "reverse/node_kinds.h"
#include "reverse/node_names.h"
#include "reverse/rule_node.h"

namespace torchlayers {

// NOTE [Types of nodes]
// In Python a node is an object of a class that belongs to its C++ type, and tools use the name of
// that class: type(grad_fn).__name__. torch has a type for each of its nodes. So our nodes have one
// of these types, a number for each name, which is registered with Python when the first such node
// is made. They differ in nothing else. When all numbers are taken, nodes have the last, which has
// no name; name() is right even then. The compiler makes 512 of each function, so they are small:
// the destructor is RuleNode's, in rule_node.cpp.
template <size_t Number>
class NumberedNode final : public RuleNode {
 public:
  using RuleNode::RuleNode;
};

namespace {

constexpr int kNumbers = 512;

template <size_t Number>
RuleNode* make(const Operator& op, const VjpRule& rule, const Args& args, const Layer& layer) {
  return new NumberedNode<Number>(op, rule, args, layer);
}

struct NodeType {
  decltype(&make<0>) make;
  const std::type_info* type;
};

template <size_t... Number>
std::array<NodeType, sizeof...(Number)> all_types(std::index_sequence<Number...>) {
  return {NodeType{&make<Number>, &typeid(NumberedNode<Number>)}...};
}

const std::array<NodeType, kNumbers> types = all_types(std::make_index_sequence<kNumbers>());

// The type of the operator's nodes, shared by all nodes of the same name.
int number_of_type(const Operator& op) {
  static std::mutex mutex;
  static auto* numbers = new std::unordered_map<std::string, int>(); // outlives late threads
  const std::string name = node_name(op);
  std::unique_lock<std::mutex> lock(mutex);
  const auto next = static_cast<int>(numbers->size());
  if (next == kNumbers - 1 && numbers->count(name) == 0) {
    return kNumbers - 1;
  }
  const auto [found, is_new] = numbers->emplace(name, next);
  const int number = found->second;
  lock.unlock(); // naming it waits for the interpreter
  if (is_new) {
    callbacks.name_type_of_nodes(*types[static_cast<size_t>(number)].type, name);
  }
  return number;
}

// The length of the common prefix of the C++ names of all those types.
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
  int type = op.node_type.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(type < 0)) {
    type = number_of_type(op);
    op.node_type.store(type, std::memory_order_relaxed);
  }
  return own_node(types[static_cast<size_t>(type)].make(op, rule, args, layer));
}

// A dynamic_cast would search the class hierarchy of every node of a pass.
RuleNode* rule_node_of(torch::autograd::Node& node) {
  static const size_t length = length_of_common_name();
  const bool is_ours =
      std::strncmp(typeid(node).name(), typeid(NumberedNode<0>).name(), length) == 0;
  return is_ours ? static_cast<RuleNode*>(&node) : nullptr;
}

} // namespace torchlayers
