#include "rules/rule.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "core/aten_functions.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "rules/small_tensors/scalar_fast_path.h"
#include "values/wrapper.h"

namespace torchlayers {

void SumOfTerms::jvp(JvpCall& call) const {
  call.run();
  at::Tensor sum;
  for (const Term& term : terms_) {
    if (call.has_tangent(term.arg)) {
      sum = sum_of({sum, term(call.tangent(term.arg), call)});
    }
  }
  call.set_tangent(0, sum);
}

void Multilinear::jvp(JvpCall& call) const {
  call.run();
  at::Tensor sum;
  for (size_t arg : args_) {
    if (call.has_tangent(arg)) {
      sum = sum_of({sum, call.with({{arg, call.tangent(arg)}})});
    }
  }
  call.set_tangent(0, sum);
}

void LinearTogether::jvp(JvpCall& call) const {
  call.run();
  JvpCall::Replacements replaced;
  for (size_t arg : args_) {
    const bool is_absent = !call.has_tangent(arg);
    replaced.emplace_back(arg, is_absent ? at::zeros_like(call[arg]) : call.tangent(arg));
  }
  call.set_tangent(0, call.all_with(replaced)[0].toTensor());
}

at::Tensor sum_of(std::initializer_list<at::Tensor> terms) {
  at::Tensor sum;
  for (const at::Tensor& term : terms) {
    if (term.defined()) {
      sum = sum.defined()
                ? in_one_pass([](const auto& a, const auto& b) { return a + b; }, sum, term)
                : term;
    }
  }
  return sum;
}

at::Tensor conjugated(const at::Tensor& tensor) {
  return tensor.is_complex() ? tensor.conj() : tensor;
}

at::Scalar conjugated(const at::Scalar& factor) {
  return factor.isComplex() ? factor.conj() : factor;
}

at::Tensor times(const at::Tensor& tensor, const at::Scalar& factor) {
  return !factor.isSymbolic() && factor.equal(1) ? tensor : at::mul(tensor, factor);
}

at::Tensor broadcast_to(const at::Tensor& tangent, const at::Tensor& x) {
  if (is_symbolic(tangent)) {
    return tangent; // a gradient, which has x's size
  }
  return tangent.dim() < x.dim() ? tangent.expand_symint(x.sym_sizes()) : tangent;
}

at::Tensor on_first(const at::Tensor& tangent, const Operands& call) {
  return call.with({{0, tangent}});
}

Term linear_in_first() {
  const auto of = [](const at::Tensor& t, const Operands& c, const Reads&) {
    return on_first(t, c);
  };
  return {0, Adjoint::Conjugate, Reads::all_but_first(), of, /*is_elementwise=*/true};
}

at::Tensor recorded_with(at::Tensor gradient, std::initializer_list<at::Tensor> values) {
  if (!c10::GradMode::is_enabled() || gradient.requires_grad()) {
    return gradient;
  }
  for (const at::Tensor& value : values) {
    if (value.defined() && value.requires_grad()) {
      const at::Tensor never = at::zeros({}, gradient.options().dtype(at::kBool));
      gradient = at::where(never, value.sum().to(gradient.scalar_type()), gradient);
    }
  }
  return gradient;
}

bool is_differentiated_below(std::initializer_list<at::Tensor> values) {
  if (std::ranges::any_of(values, is_symbolic)) {
    return false; // a graph's derivative is differentiated by that of the graph
  }
  for (const auto& entry : mirror()) {
    if (entry.key() == at::functorch::TransformType::Grad ||
        entry.key() == at::functorch::TransformType::Jvp) {
      return true;
    }
  }
  bool is_recorded = false;
  for (const at::Tensor& value : values) {
    is_recorded = is_recorded || (value.defined() && holder_of(value).requires_grad());
  }
  return is_recorded && at::GradMode::is_enabled();
}

bool may_write(std::initializer_list<at::Tensor> values) {
  return nothing_is_below() &&
         std::ranges::all_of(values, [](const at::Tensor& value) { return is_plain(value); });
}

at::Tensor filled_where(const at::Tensor& mask, at::Tensor made, const at::Scalar& value) {
  // The out-of-place operator would copy the tensor first.
  return may_write({made, mask}) && at::is_expandable_to(mask.sizes(), made.sizes())
             ? made.masked_fill_(mask, value)
             : made.masked_fill(mask, value);
}

at::Tensor add_back(
    const at::Tensor& g, c10::SymIntArrayRef sizes, int64_t dim, const at::Tensor& index) {
  at::Tensor zeros = g.new_zeros_symint(sizes);
  // The out-of-place operator would copy the zeros first.
  return may_write({g, index}) ? zeros.scatter_add_(dim, index, g)
                               : zeros.scatter_add(dim, index, g);
}

at::Tensor tangent_or_none(const JvpCall& call, size_t arg) {
  return call.has_tangent(arg) ? call.tangent(arg) : at::Tensor();
}

} // namespace torchlayers
