// The part of an operator's call that a rule reads: arguments and results, of the layers below.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/SymNodeImpl.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <utility>
#include <vector>

#include "core/keys.h"
#include "core/operator.h"

namespace torchlayers {

// Whether it stands for a tensor of a graph: operators on it are added to the graph, and it has
// neither elements nor sizes, dtype or device (graph/gradients/symbolic.h). A line that asks for
// one of these has no derivative in a graph.
inline bool is_symbolic(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kSymbolic);
}

// A number of a graph. A line that only passes a dimension on to operators has a derivative in a
// graph although it reads the dimension as a plain number: it gets one that no tensor has.
class SymbolicDim : public c10::SymNodeImpl {
 public:
  virtual int64_t as_dim() = 0;
};

// The qualified name of an operator in a table: "mul.Tensor" is aten::mul.Tensor.
inline std::string in_namespace(const std::string& name) {
  return name.find("::") == std::string::npos ? "aten::" + name : name;
}

// Arguments and results are numbered by their position in the operator's schema.
class Operands {
 public:
  // `args` are the operator's arguments, which the caller owns.
  Operands(const Operator& op, const c10::IValue* args) : op_(op), args_(args) {}

  const Operator& op() const {
    return op_;
  }
  const c10::IValue& arg(size_t i) const {
    return args_[i];
  }
  // An undefined tensor where the argument is None.
  const at::Tensor& operator[](size_t i) const {
    return arg(i).isTensor() ? arg(i).toTensor() : undefined_;
  }
  at::Scalar scalar(size_t i) const {
    return arg(i).toScalar();
  }
  int64_t integer(size_t i) const {
    return arg(i).toInt();
  }
  // An argument that counts dimensions.
  int64_t dim(size_t i) const {
    return arg(i).isInt() ? arg(i).toInt() : dim_of(arg(i));
  }
  double number(size_t i) const {
    return arg(i).toDouble();
  }
  bool flag(size_t i) const {
    return arg(i).toBool();
  }
  std::vector<int64_t> integers(size_t i) const {
    return arg(i).isNone() ? std::vector<int64_t>() : arg(i).toIntVector();
  }
  std::vector<int64_t> dims(size_t i) const {
    return arg(i).isIntList() || arg(i).isNone() ? integers(i) : dims_of(arg(i));
  }
  c10::SymInt size(size_t i) const {
    return arg(i).toSymInt();
  }
  std::vector<c10::SymInt> sizes(size_t i) const {
    return arg(i).toSymIntVector();
  }
  std::optional<at::Tensor> optional(size_t i) const {
    return arg(i).isTensor() ? std::optional<at::Tensor>(arg(i).toTensor()) : std::nullopt;
  }

  const at::Tensor& result(size_t i = 0) const {
    return results_ != nullptr && results_[i].isTensor() ? results_[i].toTensor() : undefined_;
  }

  const c10::IValue& result_value(size_t i) const {
    return results_[i];
  }

  // Runs the operator with some arguments replaced.
  using Replacements = c10::SmallVector<std::pair<size_t, c10::IValue>, 3>;
  at::Tensor with(const Replacements& replaced) const;
  Args all_with(const Replacements& replaced) const;

 protected:
  static int64_t dim_of(const c10::IValue& number);
  static std::vector<int64_t> dims_of(const c10::IValue& numbers);

  static const at::Tensor undefined_;

  const Operator& op_;
  const c10::IValue* args_;
  const c10::IValue* results_ = nullptr;
};

} // namespace torchlayers
