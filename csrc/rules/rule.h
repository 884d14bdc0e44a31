// Rules: an operator's mathematics is stated once, and a layer derives from it what the operator
// does to tangents (docs/forward-mode.md) and to cotangents (docs/reverse-mode.md).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rules/jvp_call.h"
#include "rules/term.h"

namespace torchlayers {

class JvpRule {
 public:
  JvpRule() = default;
  virtual ~JvpRule() = default;
  JvpRule(const JvpRule&) = delete;
  JvpRule& operator=(const JvpRule&) = delete;

  // Runs the operator, and sets the tangents of its results.
  virtual void jvp(JvpCall& call) const = 0;

  // Whether the user defined it. NOTE [Skipping autograd].
  virtual bool is_from_python() const {
    return false;
  }

  // The arguments in which the operator is linear; empty if it is in none, or not known to be.
  virtual std::vector<size_t> linear_in() const {
    return {};
  }
  // Whether it is linear in these jointly, and not in each while the others are fixed.
  virtual bool is_linear_together() const {
    return false;
  }
};

// An operator with one result, whose tangent is a sum of terms.
class SumOfTerms final : public JvpRule {
 public:
  explicit SumOfTerms(std::vector<Term> terms) : terms_(std::move(terms)) {}
  void jvp(JvpCall& call) const override;

 private:
  std::vector<Term> terms_;
};

// Linear in each of these arguments while the others are fixed: the tangent is the sum of the
// operator on one tangent at a time. With one argument it is a linear operator, with two a bilinear
// one.
class Multilinear final : public JvpRule {
 public:
  explicit Multilinear(std::vector<size_t> args) : args_(std::move(args)) {}
  void jvp(JvpCall& call) const override;
  std::vector<size_t> linear_in() const override {
    return args_;
  }

 private:
  std::vector<size_t> args_;
};

// Linear in these arguments jointly: the tangent is the operator on all their tangents, with zeros
// for absent ones.
class LinearTogether final : public JvpRule {
 public:
  explicit LinearTogether(std::vector<size_t> args) : args_(std::move(args)) {}
  void jvp(JvpCall& call) const override;
  std::vector<size_t> linear_in() const override {
    return args_;
  }
  bool is_linear_together() const override {
    return true;
  }

 private:
  std::vector<size_t> args_;
};

// A function that runs the operator and sets the tangents.
class Written final : public JvpRule {
 public:
  explicit Written(void (*jvp)(JvpCall&)) : jvp_(jvp) {}
  void jvp(JvpCall& call) const override {
    jvp_(call);
  }

 private:
  void (*jvp_)(JvpCall&);
};

// The sum of the defined terms; undefined if there are none.
at::Tensor sum_of(std::initializer_list<at::Tensor> terms);

// The conjugate; for a real tensor the tensor, not a view of it.
at::Tensor conjugated(const at::Tensor& tensor);
at::Scalar conjugated(const at::Scalar& factor);

// The product, without multiplying by one.
at::Tensor times(const at::Tensor& tensor, const at::Scalar& factor);

// A tangent that may have fewer dimensions than x, for kernels that do not broadcast.
at::Tensor broadcast_to(const at::Tensor& tangent, const at::Tensor& x);

// Applies the operator to the tangent of its first argument.
at::Tensor on_first(const at::Tensor& tangent, const Operands& call);
// The same as a term, for an operator that multiplies its first argument elementwise.
Term linear_in_first();

// Whether a layer or autograd below differentiates what a rule computes from these values. An
// operator's kernels may have no derivative, and its results may be constants to the layers below,
// so a rule then uses differentiable operators instead.
bool is_differentiated_below(std::initializer_list<at::Tensor> values);

// A gradient that does not depend on these values, connected with gradients of zero to those that
// autograd tracks: torch's backward operators, which receive all of them, return it like that, and
// programs check whether a gradient requires grad.
at::Tensor recorded_with(at::Tensor gradient, std::initializer_list<at::Tensor> values);

// Whether a rule may write these values in place to a tensor that it computed from one of them:
// true where no layer or mode below has to see the write.
bool may_write(std::initializer_list<at::Tensor> values);

// A tensor that the rule has just computed and holds alone, with this value where the mask is true.
at::Tensor filled_where(const at::Tensor& mask, at::Tensor made, const at::Scalar& value);
inline at::Tensor zero_where(const at::Tensor& mask, at::Tensor made) {
  return filled_where(mask, std::move(made), 0);
}

// Zeros of these sizes, with the gradient added along `dim` at the positions in `index`, which may
// repeat.
at::Tensor add_back(
    const at::Tensor& g, c10::SymIntArrayRef sizes, int64_t dim, const at::Tensor& index);

// The argument's tangent; undefined if it has none.
at::Tensor tangent_or_none(const JvpCall& call, size_t arg);

} // namespace torchlayers
