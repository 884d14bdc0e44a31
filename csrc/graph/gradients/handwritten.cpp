#include "graph/gradients/handwritten.h"

#include <torch/csrc/jit/ir/constants.h>

#include <string>
#include <unordered_set>

#include "graph/run/einsum.h"

namespace torchlayers::graph {

using c10::Symbol;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

bool is_aten(const Node& node, const std::unordered_set<std::string>& names) {
  return node.kind().is_aten() && names.count(node.kind().toUnqualString()) > 0;
}

// Whether the node returns its input unchanged.
bool is_identity(const Node& node) {
  return node.kind() == prim::profile || node.kind() == prim::profile_ivalue ||
         node.kind() == prim::unchecked_cast || node.kind() == prim::unchecked_unwrap_optional ||
         node.kind() == aten::_unwrap_optional;
}

bool is_plain_einsum(const Node& node) {
  if (node.kind() != aten::einsum || node.schema().overload_name() != "") {
    return false;
  }
  const auto equation = torch::jit::toIValue(node.input(0));
  return equation && Einsum(equation->toStringRef()).is_plain();
}

// The list of tensors that the node joins, if it is constructed in the graph; nullptr otherwise.
Value* joined_list(const Node& node) {
  Value* list = nullptr;
  if (is_aten(node, {"cat", "concat", "stack"})) {
    list = node.input(0);
  } else if (is_plain_einsum(node)) {
    list = node.input(1);
  }
  return list != nullptr && list->node()->kind() == prim::ListConstruct ? list : nullptr;
}

// Splits the cotangent along dim into tensors of the lengths of those that were joined.
Value* uncat(Node& node, Value* cotangent) {
  Graph& graph = *node.owningGraph();
  Value* sizes = nullptr;
  {
    const WithInsertPoint forward(node.next());
    std::vector<Value*> lengths;
    for (Value* tensor : node.input(0)->node()->inputs()) {
      lengths.push_back(graph.insert(aten::size, {tensor, node.input(1)}));
    }
    sizes = graph.insertNode(graph.createList(c10::IntType::get(), lengths))->output();
  }
  return graph.insert(aten::split_with_sizes, {cotangent, sizes, node.input(1)});
}

Value* uneinsum(Node& node, Value* cotangent) {
  Graph& graph = *node.owningGraph();
  Node* gradients = graph.insertNode(graph.create(
      Symbol::fromQualString("torchlayers::einsum_backward"),
      {cotangent, node.input(0), node.input(1)}));
  return gradients->output()->setType(c10::ListType::ofTensors());
}

Value* cut_dim(Node& node) {
  return node.kind() == prim::ConstantChunk
             ? node.owningGraph()->insertConstant(node.i(c10::attr::dim))
             : node.namedInput("dim");
}

} // namespace

bool is_cutting(const Node& node) {
  return node.kind() == prim::ConstantChunk || is_aten(
                                                   node,
                                                   {"chunk",
                                                    "split",
                                                    "split_with_sizes",
                                                    "unsafe_chunk",
                                                    "unsafe_split",
                                                    "unsafe_split_with_sizes",
                                                    "unbind"});
}

bool is_handwritten(const Node& node) {
  return node.kind() == prim::AutogradAdd || is_identity(node) || is_cutting(node) ||
         joined_list(node) != nullptr;
}

std::vector<Value*> handwritten_gradient(Node& node, at::ArrayRef<Value*> cotangents) {
  Graph& graph = *node.owningGraph();
  if (node.kind() == prim::AutogradAdd) {
    return {cotangents[0], cotangents[0]};
  }
  if (node.kind() == aten::einsum) {
    return {nullptr, uneinsum(node, cotangents[0]), nullptr};
  }
  if (joined_list(node) != nullptr) {
    Value* parts = node.kind() == aten::stack
                       ? graph.insert(aten::unbind, {cotangents[0], node.input(1)})
                       : uncat(node, cotangents[0]);
    return {parts, nullptr};
  }
  std::vector<Value*> gradients(node.inputs().size(), nullptr);
  gradients.at(0) = cotangents[0];
  return gradients;
}

// NOTE [Joining what was cut]
// Some parts may have no cotangent, and if a list is unpacked by position, even the number of parts
// is unknown here. So a custom operator (operators.cpp) determines it at run time.
Value* join(Node& node, const std::vector<Part>& parts) {
  Graph& graph = *node.owningGraph();
  std::vector<Value*> cotangents;
  c10::List<int64_t> indices;
  for (const auto& part : parts) {
    cotangents.push_back(part.cotangent);
    indices.push_back(part.index);
  }
  Value* list = graph.insertNode(graph.createList(c10::TensorType::get(), cotangents))->output();
  Value* dim = cut_dim(node);
  Value* places = graph.insertConstant(indices);
  const auto emit = [&](const char* name, std::initializer_list<Value*> inputs) {
    Node* joined = graph.insertNode(graph.create(Symbol::fromQualString(name), inputs));
    return joined->output()->setType(c10::TensorType::get());
  };
  Value* size = nullptr;
  {
    const WithInsertPoint forward(node.next());
    size = graph.insert(aten::size, {node.input(0)});
  }
  if (node.kind() == aten::unbind) {
    return emit("torchlayers::unbind_backward", {list, places, size, dim});
  }
  Value* number = node.kind() == prim::ConstantChunk
                      ? graph.insertConstant(node.i(c10::attr::chunks))
                      : node.input(1);
  const char* name = number->type()->kind() == c10::TypeKind::ListType
                         ? "torchlayers::split_with_sizes_backward"
                     : is_aten(node, {"split", "unsafe_split"}) ? "torchlayers::split_backward"
                                                                : "torchlayers::chunk_backward";
  return emit(name, {list, places, size, number, dim});
}

} // namespace torchlayers::graph
