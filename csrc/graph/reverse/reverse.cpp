#include "graph/reverse/reverse.h"

#include "graph/differentiable.h"
#include "graph/errors.h"
#include "graph/gradients/branches.h"
#include "graph/gradients/linear.h"
#include "graph/gradients/lists.h"
#include "graph/gradients/node_gradient.h"

namespace torchlayers::graph {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

bool writes_tracked(const Node& node, const Tracked& tracked) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr || !schema->is_mutable()) {
    return false;
  }
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const auto* alias = schema->arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && tracked.contains(node.input(i))) {
      return true;
    }
  }
  return tracked.contains_output_of(node);
}

// A write changes values that other nodes have read, or will read by another name, and a gradient
// that relies on names would be wrong.
void check_nothing_tracked_is_written(Block& block, const Tracked& tracked) {
  for (Node* node : block.nodes()) {
    if (writes_tracked(*node, tracked)) {
      refuse(
          *node,
          "it writes to a value that gradients flow through, and the write can't be removed "
          "from the graph",
          "Use the out-of-place operator.");
    }
    for (Block* inner : node->blocks()) {
      check_nothing_tracked_is_written(*inner, tracked);
    }
  }
}

// A gradient that is a list of tensors, for a list that is constructed in the graph.
void give_members(
    Linear& linear, Value* list, Value* gradient, Gradients& gradients, const Tracked& tracked) {
  Node* members = list->node();
  Graph& graph = *list->owningGraph();
  Node* unpacked = linear.insert(graph.createListUnpack(gradient, members->inputs().size()));
  for (size_t i = 0; i < members->inputs().size(); ++i) {
    if (tracked.contains(members->input(i))) {
      linear.give(members->input(i), unpacked->output(i), gradients);
    }
  }
}

// Replaces the node by a formula's forward part, whose outputs get the node's names and types.
void stand_in(Node& node, const std::vector<Value*>& outputs, Gradients& gradients) {
  if (outputs == node.outputs().vec()) {
    return;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Value* old = node.output(i);
    names.push_back(old->hasDebugName() ? old->debugName() : "");
    gradients.rename(old, outputs[i]);
    outputs[i]->setType(old->type());
    old->replaceAllUsesWith(outputs[i]);
  }
  node.destroy();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!names[i].empty()) {
      outputs[i]->setDebugName(names[i]);
    }
  }
}

void differentiate_operator(Node& node, Gradients& gradients, const Tracked& tracked) {
  std::vector<Value*> arrived;
  for (const Value* output : node.outputs()) {
    arrived.push_back(gradients.find(output));
  }
  if (std::all_of(arrived.begin(), arrived.end(), [](Value* v) { return v == nullptr; })) {
    return;
  }
  for (auto& cotangent : arrived) {
    cotangent = cotangent == nullptr ? zero(*node.owningGraph()) : cotangent;
  }
  const auto is_needed = [&](Value* value) { return tracked.contains(value); };
  Linear linear(node, arrived);
  const auto gradient = linear.build([&] { return gradient_of(node, arrived, is_needed); });
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    Value* given = gradient.inputs.at(i);
    if (given == nullptr || given->mustBeNone() || !is_needed(node.input(i))) {
      continue;
    }
    if (is_tensor_list(given)) {
      give_members(linear, node.input(i), given, gradients, tracked);
    } else {
      linear.give(node.input(i), given, gradients);
    }
  }
  stand_in(node, gradient.outputs, gradients);
}

// Rejects a list that an operator returned and whose members have cotangents, which would be
// ignored.
void check_not_taken_apart(const Node& node, const Gradients& gradients) {
  for (const Value* output : node.outputs()) {
    if (!gradients.parts(output).empty()) {
      refuse(
          node,
          "no formula for the gradient of the list that it returns is known",
          "Use cat, stack, chunk, split or unbind.");
    }
  }
}

void differentiate_node(Node& node, Gradients& gradients, const Tracked& tracked) {
  if (node.kind() == prim::If) {
    differentiate_branches(node, gradients, tracked);
  } else if (!differentiate_list(node, gradients, tracked)) {
    check_not_taken_apart(node, gradients);
    differentiate_operator(node, gradients, tracked);
  }
}

} // namespace

void sweep(Block& forward, Gradients& gradients, const Tracked& tracked) {
  for (Node* node = forward.return_node()->prev(); node != forward.param_node();) {
    Node* before = node->prev();
    if (tracked.contains_output_of(*node)) {
      differentiate_node(*node, gradients, tracked);
    }
    node = before;
  }
}

Reverse add_reverse(Graph& graph, const Tracked& tracked, ScriptGradient& result) {
  Node* node = graph.create(prim::Reverse, 0);
  Reverse reverse{node, node->addBlock(), {}};
  const WithInsertPoint guard(reverse.block);
  check_nothing_tracked_is_written(*graph.block(), tracked);
  result.df_input_vjps = outputs_requiring_grad(graph, tracked);
  for (const size_t i : result.df_input_vjps) {
    Value* output = graph.outputs()[i];
    Value* cotangent = reverse.block->addInput()->setType(output->type());
    reverse.gradients.add(output, name_gradient(cotangent, output));
  }
  sweep(*graph.block(), reverse.gradients, tracked);
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    Value* gradient = reverse.gradients.find(graph.inputs()[i]);
    if (gradient != nullptr && tracked.contains(graph.inputs()[i])) {
      reverse.block->registerOutput(gradient);
      result.df_output_vjps.push_back(i);
    }
  }
  return reverse;
}

} // namespace torchlayers::graph
