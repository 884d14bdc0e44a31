// Symbolic values: the third kind that a line of csrc/rules is evaluated on, beside tensors and
// plain numbers. They stand for values of a graph, and what is computed from them is added to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/SymInt.h>
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace torchlayers::graph {

// NOTE [Symbolic values]
// A symbolic tensor is an at::Tensor with a dispatch key of its own (kSymbolic), whose fallback
// adds a node for each operator to a Formula. So a line is evaluated as it is, and so are the
// functions that it calls: none of them is compiled a third time. A symbolic number is a SymInt or
// SymFloat; a line that reads one as a dimension (Operands::dim) gets an integer that stands for
// it. A graph is for tensors of any size, dtype and device, real ones, so a line that asks for one
// of these, or decides by a number that is no constant, raises an error, and gives no formula.
// Arguments become inputs of the formula when an operator reads them, which says what has to be
// saved for it.
class Formula {
 public:
  // Two formulas whose tensors and dimensions pretend to be different ones: a line that depends on
  // how many dimensions there are gives different graphs.
  enum class Variant { First, Second };
  explicit Formula(Variant variant) : variant_(variant) {}

  // The input of this name, which is added if it is not there yet.
  torch::jit::Value* input(const std::string& name, const c10::TypePtr& type);

  at::Tensor tensor(const std::string& name, const c10::TypePtr& type = c10::TensorType::get());
  c10::IValue number(const std::string& name, const c10::TypePtr& type);
  // The number that stands for a dimension. Lines may pass it on, but not compute with it.
  int64_t dim_of(torch::jit::Value* dimension);
  // A list of integers of unknown length. Lines may pass it on as a whole.
  std::vector<c10::SymInt> integers(const std::string& name);
  // The size of an argument: the input "name_size".
  std::vector<c10::SymInt> sizes_of(const std::string& name);

  // The value that an IValue stands for, which may be a constant of the graph.
  torch::jit::Value* value_of(const c10::IValue& value, const c10::Argument& argument);
  torch::jit::Value* add(const char* op, at::ArrayRef<torch::jit::Value*> inputs);

  torch::jit::Graph& graph() {
    return *graph_;
  }
  const std::shared_ptr<torch::jit::Graph>& shared_graph() const {
    return graph_;
  }
  const std::vector<std::string>& names() const {
    return names_;
  }

 private:
  friend void add_operator(const c10::OperatorHandle&, torch::jit::Stack*);

  size_t rank() const {
    return variant_ == Variant::First ? 2 : 3;
  }
  torch::jit::Value* list_of(const c10::IValue& list, const c10::TypePtr& type);
  torch::jit::Value* constant(const c10::IValue& value);

  std::shared_ptr<torch::jit::Graph> graph_ = std::make_shared<torch::jit::Graph>();
  std::vector<std::string> names_; // of the inputs
  std::unordered_map<std::string, torch::jit::Value*> inputs_;
  std::vector<torch::jit::Value*> dtypes_; // those that result_type returned
  std::unordered_map<int64_t, torch::jit::Value*> dims_;
  Variant variant_;
};

// Raises an error unless the tensor is symbolic.
torch::jit::Value* value_of(const at::Tensor& tensor);

} // namespace torchlayers::graph
