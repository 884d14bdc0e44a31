#include "graph/prepare/structure.h"

#include "graph/errors.h"

namespace torchlayers::graph {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace prim = c10::prim;

namespace {

bool holds_tensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) {
    return true;
  }
  for (const auto& contained : type->containedTypes()) {
    if (holds_tensors(contained)) {
      return true;
    }
  }
  return false;
}

Structure structure_of(const c10::TypePtr& type) {
  Structure structure;
  structure.kind = type->kind() == c10::TypeKind::ListType ? "list" : "tuple";
  if (const auto tuple = type->cast<c10::TupleType>(); tuple && tuple->schema() && tuple->name()) {
    structure.kind = tuple->name()->name();
    for (const auto& argument : tuple->schema()->arguments()) {
      structure.fields.push_back(argument.name());
    }
  }
  return structure;
}

c10::IValue member_of(const c10::IValue& whole, size_t i) {
  return whole.isTuple() ? whole.toTupleRef().elements().at(i)
                         : c10::IValue(whole.toListRef().at(i));
}

// The type of an input, with the dtype of its example, if it has one.
c10::TypePtr refined(const c10::TypePtr& type, const c10::IValue* example) {
  if (example == nullptr || !example->isTensor() || !example->toTensor().defined()) {
    return type;
  }
  const auto tensor = type->cast<c10::TensorType>();
  return tensor && !tensor->scalarType() ? tensor->withScalarType(example->toTensor().scalar_type())
                                         : type;
}

// Adds the inputs that form a value of this type and, at the insert point, the nodes that construct
// it. Returns the value and its structure.
std::pair<Value*, Structure> add_input(
    Graph& graph, const c10::TypePtr& type, const std::string& name, const c10::IValue* example) {
  const bool is_list = type->kind() == c10::TypeKind::ListType && holds_tensors(type);
  if (!is_list && type->kind() != c10::TypeKind::TupleType) {
    return {graph.addInput(name)->setType(refined(type, example)), {"value", {}, {}}};
  }
  if (is_list && example == nullptr) {
    throw GraphProblem(
        "torchlayers: can't differentiate a graph whose input %" + name +
        " is a list of tensors of unknown length. Pass example_inputs.");
  }
  Structure structure = structure_of(type);
  std::vector<Value*> members;
  const size_t count = is_list ? example->toListRef().size() : type->containedTypes().size();
  for (size_t i = 0; i < count; ++i) {
    const auto member = example == nullptr ? c10::IValue() : member_of(*example, i);
    auto [value, inner] = add_input(
        graph,
        type->containedTypes()[is_list ? 0 : i],
        name + "_" + std::to_string(i) + "_",
        example == nullptr ? nullptr : &member);
    members.push_back(value);
    structure.parts.push_back(std::move(inner));
  }
  const auto named = type->cast<c10::TupleType>();
  Node* whole = is_list ? graph.createList(type->containedTypes()[0], members)
                        : graph.createTuple(members, named->schema() ? named : nullptr);
  return {graph.insertNode(whole)->output()->setType(type), structure};
}

Structure flatten_output(Graph& graph, Value* value, std::vector<Value*>& flat) {
  const auto kind = value->node()->kind();
  const bool is_list = kind == prim::ListConstruct && holds_tensors(value->type());
  if (kind != prim::TupleConstruct && !is_list) {
    flat.push_back(value);
    return {"value", {}, {}};
  }
  Structure structure = structure_of(value->type());
  for (Value* member : value->node()->inputs()) {
    structure.parts.push_back(flatten_output(graph, member, flat));
  }
  return structure;
}

} // namespace

std::vector<Structure> flatten_inputs(
    Graph& graph, const std::optional<std::vector<c10::IValue>>& examples) {
  const WithInsertPoint first(*graph.nodes().begin());
  std::vector<Structure> structures;
  const size_t count = graph.inputs().size();
  for (size_t i = 0; i < count; ++i) {
    Value* input = graph.inputs()[i];
    const auto name = input->hasDebugName() ? input->debugNameBase() : "input_" + std::to_string(i);
    const bool has_example = examples && i < examples->size();
    auto [value, structure] =
        add_input(graph, input->type(), name, has_example ? &examples->at(i) : nullptr);
    input->replaceAllUsesWith(value);
    structures.push_back(std::move(structure));
  }
  for (size_t i = 0; i < count; ++i) {
    graph.eraseInput(0);
  }
  return structures;
}

Structure flatten_outputs(Graph& graph) {
  std::vector<Value*> flat;
  Structure structure{"tuple", {}, {}};
  for (Value* output : graph.outputs()) {
    structure.parts.push_back(flatten_output(graph, output, flat));
  }
  const bool single = structure.parts.size() == 1;
  graph.block()->removeAllOutputs();
  for (Value* value : flat) {
    graph.registerOutput(value);
  }
  return single ? structure.parts[0] : structure;
}

} // namespace torchlayers::graph
