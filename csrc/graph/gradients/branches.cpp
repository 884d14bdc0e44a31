#include "graph/gradients/branches.h"

#include <algorithm>

#include "core/device.h"
#include "graph/errors.h"
#include "graph/gradients/linear.h"
#include "graph/reverse/captures.h"
#include "graph/reverse/constants.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace prim = c10::prim;

namespace {

// A value that the branch that is not taken returns in place of a value of the other one. It is
// never read, but Python must be able to hold it, because captures may be returned to Python.
Value* placeholder(const Node& node, Graph& graph, const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return zero(graph);
    case c10::TypeKind::OptionalType:
      return graph.insertConstant(c10::IValue())->setType(type);
    case c10::TypeKind::IntType:
      return graph.insertConstant(0);
    case c10::TypeKind::FloatType:
      return graph.insertConstant(0.0);
    case c10::TypeKind::BoolType:
      return graph.insertConstant(false);
    case c10::TypeKind::DeviceObjType:
      return graph.insertConstant(c10::Device(kHost));
    case c10::TypeKind::ListType:
      return graph
          .insertNode(graph.createList(type->expectRef<c10::ListType>().getElementType(), {}))
          ->output();
    default:
      refuse(
          node,
          "its gradient reads a " + type->str() + " of one branch",
          "Compute that before the branches.");
  }
}

// Gradients leave a branch as tensors, so a list from outside must be unpacked before the branch.
void check_lists(const Node& node, const Block& branch, const Gradients& gradients) {
  for (const Value* list : gradients.lists()) {
    if (!is_inside(list->node(), branch)) {
      refuse(
          node,
          "a branch unpacks a list that was created before it",
          "Unpack the list before the branches.");
    }
  }
}

// Makes values of a branch that its reverse reads outputs of the prim::If.
void expose(Node& node, Block* branch, Block* reverse) {
  Graph& graph = *node.owningGraph();
  for (Value* value : captures_of(*branch, *reverse)) {
    for (Block* block : node.blocks()) {
      const WithInsertPoint inside(block);
      block->registerOutput(block == branch ? value : placeholder(node, graph, value->type()));
    }
    Value* outside = node.addOutput()->setType(value->type());
    replace_uses_in(*reverse, value, outside);
  }
}

} // namespace

void differentiate_branches(Node& node, Gradients& gradients, const Tracked& tracked) {
  std::vector<size_t> arrived;
  std::vector<Value*> cotangents;
  for (const Value* output : node.outputs()) {
    if (Value* cotangent = gradients.find(output)) {
      arrived.push_back(output->offset());
      cotangents.push_back(cotangent);
    }
  }
  if (arrived.empty()) {
    return;
  }

  Linear linear(node, cotangents);
  Graph& graph = *node.owningGraph();
  Node* choice = linear.insert(graph.create(prim::If, {node.input()}, 0));
  std::vector<Gradients> found(node.blocks().size());
  std::vector<Value*> outer; // values from outside the branches that have a gradient in one
  for (size_t b = 0; b < node.blocks().size(); ++b) {
    Block* branch = node.blocks()[b];
    const WithInsertPoint inside(choice->addBlock());
    for (size_t i = 0; i < arrived.size(); ++i) {
      Value* returned = branch->outputs()[arrived[i]];
      if (tracked.contains(returned)) {
        found[b].add(returned, cotangents[i]);
      }
    }
    sweep(*branch, found[b], tracked);
    check_lists(node, *branch, found[b]);
    for (Value* value : found[b].values()) {
      const bool known = std::find(outer.begin(), outer.end(), value) != outer.end();
      if (!known && !is_inside(value->node(), *branch)) {
        outer.push_back(value);
      }
    }
  }
  for (size_t b = 0; b < node.blocks().size(); ++b) {
    const WithInsertPoint inside(choice->blocks()[b]);
    for (Value* value : outer) {
      Value* gradient = found[b].find(value);
      choice->blocks()[b]->registerOutput(gradient == nullptr ? zero(graph) : gradient);
    }
    lift_constants(*node.blocks()[b], *choice->blocks()[b]);
    expose(node, node.blocks()[b], choice->blocks()[b]);
  }
  for (Value* value : outer) {
    linear.give(value, choice->addOutput()->setType(c10::TensorType::get()), gradients);
  }
}

} // namespace torchlayers::graph
