// Rules: an operator states its mathematics once, and a layer reads from it what the operator
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

  // Runs the operator, and gives its results their tangents.
  virtual void jvp(JvpCall& call) const = 0;

  // Whether it is a user's. NOTE [Skipping autograd].
  virtual bool is_from_python() const {
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

// Linear in each of these arguments by itself, the others held: the tangent is the sum of
// the operator on one tangent at a time. One argument: a linear operator; two: bilinear.
class Multilinear final : public JvpRule {
 public:
  explicit Multilinear(std::vector<size_t> args) : args_(std::move(args)) {}
  void jvp(JvpCall& call) const override;

 private:
  std::vector<size_t> args_;
};

// Linear in these arguments at once: the tangent is the operator on all their tangents,
// with zeros for those that are absent.
class LinearTogether final : public JvpRule {
 public:
  explicit LinearTogether(std::vector<size_t> args) : args_(std::move(args)) {}
  void jvp(JvpCall& call) const override;

 private:
  std::vector<size_t> args_;
};

// Written out: runs the operator and sets the tangents itself.
class Written final : public JvpRule {
 public:
  explicit Written(void (*jvp)(JvpCall&)) : jvp_(jvp) {}
  void jvp(JvpCall& call) const override {
    jvp_(call);
  }

 private:
  void (*jvp_)(JvpCall&);
};

// The sum of those that are there; undefined if none is.
at::Tensor sum_of(std::initializer_list<at::Tensor> terms);

// Without a view where there is nothing to conjugate.
at::Tensor conjugated(const at::Tensor& tensor);
at::Scalar conjugated(const at::Scalar& factor);

// The product, without multiplying by one.
at::Tensor times(const at::Tensor& tensor, const at::Scalar& factor);

// The operator on the tangent of its first argument.
at::Tensor on_first(const at::Tensor& tangent, const Operands& call);
// That for a term: of an operator that multiplies its first argument, element by element.
Term linear_in_first();

// Whether somebody below differentiates what a rule makes of these. An operator's kernels may
// have no derivative, and its results be constants, where what they are made of is neither.
bool is_differentiated_below(std::initializer_list<at::Tensor> values);

// A gradient that does not depend on these values, with a history of zeros to those that autograd
// records: torch's backward operators, which are given all of them, return it so, and programs ask
// whether a gradient requires grad.
at::Tensor recorded_with(at::Tensor gradient, std::initializer_list<at::Tensor> values);

// Whether a rule may write these values to a tensor that it has made of one of them: nobody below
// has to be told.
bool may_write(std::initializer_list<at::Tensor> values);

// What a rule has just made, and nobody else has, with this value where the mask says.
at::Tensor filled_where(const at::Tensor& mask, at::Tensor made, const at::Scalar& value);
inline at::Tensor zero_where(const at::Tensor& mask, at::Tensor made) {
  return filled_where(mask, std::move(made), 0);
}

// Zeros of these sizes, with the gradient added where `index` says along `dim`: perhaps several
// times to one element.
at::Tensor add_back(
    const at::Tensor& g, c10::SymIntArrayRef sizes, int64_t dim, const at::Tensor& index);

// The argument's tangent; undefined if it has none.
at::Tensor tangent_or_none(const JvpCall& call, size_t arg);

} // namespace torchlayers
