// One call of an operator, as seen by a tangent rule: the arguments belong to the layers below, and
// each has a tangent or none.
#pragma once

#include <c10/util/SmallVector.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "core/layer.h"
#include "rules/operands.h"

namespace torchlayers {

// An absent tangent is an undefined tensor. It represents zeros, with which nothing is computed.
class JvpCall : public Operands {
 public:
  // `args` ends with the arguments, unwrapped. `tangents` runs parallel to the tensors among them.
  JvpCall(const Operator& op, Args& args, const Tangents& tangents);

  const at::Tensor& tangent(size_t i) const {
    return tangents_[starts_[i]];
  }
  bool has_tangent(size_t i) const {
    return starts_[i] < starts_[i + 1] && tangent(i).defined();
  }
  // The tangents of the members of a list of tensors.
  at::ArrayRef<at::Tensor> tangents(size_t i) const {
    return at::ArrayRef<at::Tensor>(tangents_).slice(starts_[i], starts_[i + 1] - starts_[i]);
  }
  bool has_tangents(size_t i) const;

  // Calls the operator on its arguments and stores the results.
  void run();
  // Turns this into a call of an in-place operator: the arguments are then copies of what it writes
  // to, and `run` runs `in_place` on the original.
  void write_to(const Operator& in_place, const at::Tensor& target);
  bool writes() const {
    return in_place_ != nullptr;
  }
  // Sets results that were computed another way.
  void have_run(Args results);

  // Sets the tangent of a result. A result without one has tangent zero.
  void set_tangent(size_t result, at::Tensor tangent);
  void set_tangents(size_t result, const std::vector<at::Tensor>& tangents);

  // Replaces the arguments by the results, and returns the tangents of the tensors among those, in
  // order: each has its result's size, dtype and strides, and is a new tensor, no argument or
  // tangent.
  Tangents finish();
  // The tangent that was set for a result, unchanged.
  at::Tensor given(size_t result) const;

 private:
  at::Tensor fitted(at::Tensor tangent, const at::Tensor& result);
  bool is_of_argument(const at::Tensor& tensor) const;

  const Operator* in_place_ = nullptr;
  at::Tensor target_;
  Args& stack_;
  size_t first_;
  const Tangents& tangents_;
  c10::SmallVector<size_t, 8> starts_;
  Args computed_;
  c10::SmallVector<std::pair<size_t, at::Tensor>, 2> given_; // by place among all results
  bool gave_zero_tensors_ = false;                           // among the results that have tangents
};

} // namespace torchlayers
