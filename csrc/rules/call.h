// One call of an operator, as a rule sees it: arguments of the layers below, each with
// its tangent or none.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "../operator.h"

namespace torchlayers {

// Arguments and results go by their places in the operator's schema. A tangent that is
// absent is an undefined tensor, and stands for zeros that nobody computes with.
class Call {
 public:
  // The arguments end `args`, unwrapped, and `tangents` runs parallel to the tensors
  // among them, in their order.
  Call(const Operator& op, Args& args, const std::vector<at::Tensor>& tangents);

  const Operator& op() const {
    return op_;
  }
  const c10::IValue& arg(size_t i) const {
    return args_[first_ + i];
  }
  // An undefined tensor where the argument is None.
  const at::Tensor& operator[](size_t i) const {
    return arg(i).isTensor() ? arg(i).toTensor() : undefined_;
  }
  const at::Tensor& tangent(size_t i) const {
    return tangents_[starts_[i]];
  }
  bool has_tangent(size_t i) const {
    return starts_[i] < starts_[i + 1] && tangent(i).defined();
  }
  // Of a list of tensors: its members' tangents.
  at::ArrayRef<at::Tensor> tangents(size_t i) const {
    return at::ArrayRef<at::Tensor>(tangents_).slice(starts_[i], starts_[i + 1] - starts_[i]);
  }
  bool has_tangents(size_t i) const;

  at::Scalar scalar(size_t i) const {
    return arg(i).toScalar();
  }
  int64_t integer(size_t i) const {
    return arg(i).toInt();
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
  c10::SymInt size(size_t i) const {
    return arg(i).toSymInt();
  }
  std::vector<c10::SymInt> sizes(size_t i) const {
    return arg(i).toSymIntVector();
  }

  // Calls the operator on its arguments, whose results are then there.
  void run();
  // Makes this the call of an in-place operator by that name: the arguments hold copies of
  // what it writes to, and `run` runs it on the original.
  void write_to(const Operator& in_place, const at::Tensor& target);
  // Takes results that were computed another way.
  void have_run(Args results);
  const at::Tensor& result(size_t i = 0) const {
    return results_[i].toTensor();
  }
  std::vector<at::Tensor> result_list(size_t i) const {
    return results_[i].toTensorVector();
  }
  bool has_list_result(size_t i) const {
    return results_[i].isList();
  }

  // The operator's results with some arguments replaced.
  using Replacements = c10::SmallVector<std::pair<size_t, c10::IValue>, 3>;
  at::Tensor with(const Replacements& replaced) const;
  Args all_with(const Replacements& replaced) const;

  // Gives a result its tangent. One that is given none has none.
  void set_tangent(size_t result, at::Tensor tangent);
  void set_tangents(size_t result, const std::vector<at::Tensor>& tangents);

  // Puts the results in the arguments' place, and hands over the tangents of the tensors
  // among them, in their order: each of its result's size, dtype and strides, and its own.
  std::vector<at::Tensor> finish();
  // The tangent that a result was given, as it is.
  at::Tensor given(size_t result) const;

 private:
  at::Tensor fitted(at::Tensor tangent, const at::Tensor& result) const;
  bool is_of_argument(const at::Tensor& tensor) const;

  static const at::Tensor undefined_;

  const Operator& op_;
  const Operator* in_place_ = nullptr;
  at::Tensor target_;
  Args& args_;
  size_t first_;
  const std::vector<at::Tensor>& tangents_;
  c10::SmallVector<size_t, 8> starts_;
  Args results_;
  c10::SmallVector<std::pair<size_t, at::Tensor>, 2> given_; // by place among all results
};

} // namespace torchlayers
