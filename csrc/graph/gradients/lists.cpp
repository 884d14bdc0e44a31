#include "graph/gradients/lists.h"

#include <torch/csrc/jit/ir/constants.h>

#include "graph/errors.h"
#include "graph/gradients/linear.h"

namespace torchlayers::graph {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;
namespace prim = c10::prim;

bool is_tensor_list(const Value* value) {
  return value->type()->isSubtypeOf(*c10::ListType::ofTensors());
}

namespace {

// For an unpacked list, the cotangents of its members are stored for the node that created the
// list.
bool take_apart(Node& node, Gradients& gradients) {
  if (node.kind() == prim::ListUnpack) {
    for (Value* output : node.outputs()) {
      if (Value* cotangent = gradients.find(output)) {
        gradients.add_part(node.input(), {int64_t(output->offset()), cotangent});
      }
    }
    return true;
  }
  if (node.kind() != aten::__getitem__ || !is_tensor_list(node.input(0))) {
    return false;
  }
  const auto index = torch::jit::constant_as<int64_t>(node.input(1));
  if (!index) {
    refuse(
        node,
        "the index into the list of tensors is only known at run time",
        "Index lists of tensors with constants.");
  }
  if (Value* cotangent = gradients.find(node.output())) {
    gradients.add_part(node.input(0), {*index, cotangent});
  }
  return true;
}

// For a constructed list, the cotangents of its members are passed on to them.
bool put_together(Node& node, Gradients& gradients, const Tracked& tracked) {
  if (node.kind() != prim::ListConstruct) {
    return false;
  }
  const auto count = int64_t(node.inputs().size());
  for (const auto& part : gradients.parts(node.output())) {
    Value* member = node.input(part.index < 0 ? part.index + count : part.index);
    if (tracked.contains(member)) {
      gradients.add(member, part.cotangent);
    }
  }
  return true;
}

// A splitting node's parts: its outputs, or members of the list that it returns.
std::vector<Part> parts_of(const Node& node, const Gradients& gradients) {
  if (node.kind() != prim::ConstantChunk) {
    return gradients.parts(node.output());
  }
  std::vector<Part> parts;
  for (const Value* output : node.outputs()) {
    if (Value* cotangent = gradients.find(output)) {
      parts.push_back({int64_t(output->offset()), cotangent});
    }
  }
  return parts;
}

void check_list_is_taken_apart(const Node& node) {
  if (node.kind() == prim::ConstantChunk) {
    return;
  }
  for (const auto& use : node.output()->uses()) {
    if (use.user->kind() != prim::ListUnpack && use.user->kind() != aten::__getitem__ &&
        use.user->kind() != aten::len) {
      refuse(
          node,
          std::string("the list that it returns is passed on as a whole, to ") +
              use.user->kind().toQualString(),
          "Unpack the list, or index it with constants.");
    }
  }
}

void differentiate_cut(Node& node, Gradients& gradients) {
  check_list_is_taken_apart(node);
  const auto parts = parts_of(node, gradients);
  if (parts.empty()) {
    return;
  }
  std::vector<Value*> cotangents;
  for (const auto& part : parts) {
    cotangents.push_back(part.cotangent);
  }
  Linear linear(node, cotangents);
  linear.give(node.input(0), [&] { return join(node, parts); }, gradients);
}

// Each member of the list is reduced to its original size.
bool differentiate_broadcast(Node& node, Gradients& gradients, const Tracked& tracked) {
  if (node.kind() != aten::broadcast_tensors ||
      node.input()->node()->kind() != prim::ListConstruct) {
    return false;
  }
  Graph& graph = *node.owningGraph();
  const auto members = node.input()->node()->inputs();
  for (const auto& part : gradients.parts(node.output())) {
    Value* member = members[part.index < 0 ? part.index + members.size() : part.index];
    if (!tracked.contains(member)) {
      continue;
    }
    Value* size = nullptr;
    {
      const WithInsertPoint forward(node.next());
      size = graph.insert(aten::size, {member});
    }
    Linear linear(node, {part.cotangent});
    linear.give(
        member,
        [&] { return graph.insert(aten::_grad_sum_to_size, {part.cotangent, size}); },
        gradients);
  }
  return true;
}

} // namespace

bool differentiate_list(Node& node, Gradients& gradients, const Tracked& tracked) {
  if (is_cutting(node)) {
    differentiate_cut(node, gradients);
    return true;
  }
  return take_apart(node, gradients) || put_together(node, gradients, tracked) ||
         differentiate_broadcast(node, gradients, tracked);
}

} // namespace torchlayers::graph
