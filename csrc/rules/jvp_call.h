// One call of an operator, as a tangent rule sees it: arguments of the layers below, each
// with its tangent or none.
#pragma once

#include <c10/util/SmallVector.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "core/layer.h"
#include "rules/operands.h"

namespace torchlayers {

// A tangent that is absent is an undefined tensor, and stands for zeros that nobody computes
// with.
class JvpCall : public Operands {
 public:
  // The arguments end `args`, unwrapped, and `tangents` runs parallel to the tensors
  // among them, in their order.
  JvpCall(const Operator& op, Args& args, const Tangents& tangents);

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

  // Calls the operator on its arguments, whose results are then there.
  void run();
  // Makes this the call of an in-place operator by that name: the arguments hold copies of
  // what it writes to, and `run` runs it on the original.
  void write_to(const Operator& in_place, const at::Tensor& target);
  bool writes() const {
    return in_place_ != nullptr;
  }
  // Takes results that were computed another way.
  void have_run(Args results);

  // Gives a result its tangent. One that is given none has none.
  void set_tangent(size_t result, at::Tensor tangent);
  void set_tangents(size_t result, const std::vector<at::Tensor>& tangents);

  // Puts the results in the arguments' place, and hands over the tangents of the tensors
  // among them, in their order: each of its result's size, dtype and strides, and its own.
  Tangents finish();
  // The tangent that a result was given, as it is.
  at::Tensor given(size_t result) const;

 private:
  at::Tensor fitted(at::Tensor tangent, const at::Tensor& result) const;
  bool is_of_argument(const at::Tensor& tensor) const;

  const Operator* in_place_ = nullptr;
  at::Tensor target_;
  Args& stack_;
  size_t first_;
  const Tangents& tangents_;
  c10::SmallVector<size_t, 8> starts_;
  Args computed_;
  c10::SmallVector<std::pair<size_t, at::Tensor>, 2> given_; // by place among all results
};

} // namespace torchlayers
