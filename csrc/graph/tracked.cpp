#include "graph/tracked.h"

#include <algorithm>
#include <string>

#include "graph/differentiable.h"

namespace torchlayers::graph {

using c10::TypeKind;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = c10::prim;

namespace {

// Scripted `with torch.no_grad():` creates an object of a class compiled from torch's own.
bool is_grad_mode(const Node& node, const char* name) {
  const auto type = node.inputs()[0]->type()->cast<c10::ClassType>();
  return type && type->name() &&
         type->name()->qualifiedName().find(std::string("grad_mode.") + name) != std::string::npos;
}

} // namespace

bool may_require_grad(const c10::TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::TensorType: {
      const auto& tensor = type->expectRef<c10::TensorType>();
      const auto dtype = tensor.scalarType();
      const bool integral = dtype && !c10::isFloatingType(*dtype) && !c10::isComplexType(*dtype);
      return !integral && tensor.requiresGrad().value_or(true);
    }
    case TypeKind::ListType:
    case TypeKind::OptionalType:
    case TypeKind::TupleType:
    case TypeKind::DictType:
      return std::any_of(
          type->containedTypes().begin(), type->containedTypes().end(), may_require_grad);
    default:
      return false;
  }
}

void set_inputs_requiring_grad(Graph& graph, const std::vector<bool>& required) {
  for (size_t i = 0; i < required.size(); ++i) {
    Value* input = graph.inputs()[i];
    if (const auto tensor = input->type()->cast<c10::TensorType>()) {
      input->setType(tensor->withRequiresGrad(required[i]));
    } else if (const auto optional = input->type()->cast<c10::OptionalType>()) {
      if (const auto inner = optional->getElementType()->cast<c10::TensorType>()) {
        input->setType(c10::OptionalType::create(inner->withRequiresGrad(required[i])));
      }
    }
  }
}

void forget_requires_grad(Block& block) {
  const auto forget = [](at::ArrayRef<Value*> values) {
    for (Value* value : values) {
      if (const auto tensor = value->type()->cast<c10::TensorType>()) {
        value->setType(tensor->withRequiresGrad(std::nullopt));
      }
    }
  };
  forget(block.inputs());
  for (Node* node : block.nodes()) {
    forget(node->outputs());
    for (Block* inner : node->blocks()) {
      forget_requires_grad(*inner);
    }
  }
}

Tracked::Tracked(Graph& graph) {
  for (const Value* input : graph.inputs()) {
    if (may_require_grad(input->type())) {
      values_.insert(input);
    }
  }
  visit(*graph.block());
}

bool Tracked::contains_output_of(const Node& node) const {
  const auto outputs = node.outputs();
  return std::any_of(
      outputs.begin(), outputs.end(), [this](const Value* v) { return contains(v); });
}

bool Tracked::contains_input_of(const Node& node) const {
  const auto inputs = node.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [this](const Value* v) { return contains(v); });
}

void Tracked::visit(Block& block) {
  for (Node* node : block.nodes()) {
    visit(*node);
  }
}

// A block may read tracked values of the enclosing blocks without having them as inputs.
bool Tracked::reads_tracked(const Node& node) const {
  if (contains_input_of(node)) {
    return true;
  }
  for (const Block* block : node.blocks()) {
    for (const Node* inner : block->nodes()) {
      if (reads_tracked(*inner)) {
        return true;
      }
    }
  }
  return false;
}

void Tracked::visit(Node& node) {
  if (node.kind() == prim::Enter) {
    const bool off = is_grad_mode(node, "no_grad") || is_grad_mode(node, "inference_mode");
    const bool on = is_grad_mode(node, "enable_grad");
    grad_modes_.push_back(on || (!off && grad_modes_.back()));
  } else if (node.kind() == prim::Exit && grad_modes_.size() > 1) {
    grad_modes_.pop_back();
  } else if (node.kind() == prim::If) {
    visit_branches(node);
  } else if (node.kind() == prim::Loop) {
    visit_loop(node);
  } else if (grad_modes_.back() && reads_tracked(node)) {
    for (Value* output : node.outputs()) {
      if (may_require_grad(output->type()) && has_derivative(node, output->offset())) {
        values_.insert(output);
      }
    }
  }
}

void Tracked::visit_branches(Node& node) {
  for (Block* block : node.blocks()) {
    visit(*block);
    for (size_t i = 0; i < block->outputs().size(); ++i) {
      if (contains(block->outputs()[i])) {
        values_.insert(node.output(i));
      }
    }
  }
}

// A loop-carried value may become tracked in any iteration, and then is in the next one.
void Tracked::visit_loop(Node& node) {
  Block* body = node.blocks()[0];
  for (size_t i = 2; i < node.inputs().size(); ++i) {
    if (contains(node.input(i))) {
      values_.insert(body->inputs()[i - 1]);
    }
  }
  for (bool grew = true; grew;) {
    grew = false;
    visit(*body);
    for (size_t i = 1; i < body->outputs().size(); ++i) {
      if (contains(body->outputs()[i])) {
        grew |= values_.insert(body->inputs()[i]).second;
        values_.insert(node.output(i - 1));
      }
    }
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    if (contains(node.input(i + 2))) {
      values_.insert(node.output(i));
    }
  }
}

std::vector<size_t> outputs_requiring_grad(Graph& graph, const Tracked& tracked) {
  std::vector<size_t> found;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    if (tracked.contains(graph.outputs()[i])) {
      found.push_back(i);
    }
  }
  return found;
}

} // namespace torchlayers::graph
