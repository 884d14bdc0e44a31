// softmax, its logarithm, and logsumexp.
#include "rules/families.h"
#include "rules/reductions/dims.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The Jacobian of softmax is symmetric, so its backward operator computes its tangent too.
Tensor softmax_tangent(const Tensor& t, const Tensor& y, int64_t dim) {
  return at::_softmax_backward_data(t.to(y.scalar_type()), y, dim, y.scalar_type());
}

Tensor log_softmax_tangent(const Tensor& t, const Tensor& y, int64_t dim) {
  return t - (y.exp() * t).sum(dim, /*keepdim=*/true);
}

Tensor softmax_curvature(const Tensor& t, const Tensor& g, const Tensor& y, int64_t dim) {
  return t * (g - (g * y).sum(dim, true)) - y * (g * t).sum(dim, true);
}

// The derivative of y (g' - sum(g' y)) by y, where g' is the cotangent passed to the backward
// operator.
Tensor softmax_backward_of_result(
    const Tensor& g, const Tensor& given, const Tensor& y, int64_t dim) {
  return g * (given - (given * y).sum(dim, true)) - given * (g * y).sum(dim, true);
}

Tensor log_softmax_curvature(const Tensor& t, const Tensor& g, const Tensor& y, int64_t dim) {
  return -y.exp() * t * g.sum(dim, true);
}

Tensor logsumexp_tangent(const Tensor& t, const Tensor& x, const Tensor& y, const Dims& over) {
  if (x.dim() == 0) {
    return t;
  }
  return over.sum_of(
      [](const auto& t, const auto& x, const auto& kept) { return exp(x - kept) * t; },
      t,
      x,
      over.takes_all(x) ? y : over.kept(y, x.dim()));
}

Tensor logsumexp_gradient(const Tensor& g, const Tensor& x, const Tensor& y, const Dims& over) {
  if (x.dim() == 0) {
    return g;
  }
  const Tensor share = (x - over.kept(y, x.dim())).exp();
  return over.kept(g, x.dim()) * (share.is_complex() ? share.conj() : share);
}

} // namespace

void add_softmax(Table& rules) {
  for (const char* name : {"_softmax", "_safe_softmax"}) {
    rules[name].terms(SYMMETRIC_TERM(0, softmax_tangent(t, y, c.dim(1)))).along(Along::Mixes);
  }
  rules["_log_softmax"]
      .jvp(TANGENT(0, log_softmax_tangent(t, y, c.dim(1))))
      .vjp(VJP(0, at::_log_softmax_backward_data(g, y, c.dim(1), c.dtype_of(0))))
      .along(Along::Mixes);
  rules["logsumexp"]
      .jvp(TANGENT(0, logsumexp_tangent(t, x, y, Dims{c.dims(1), c.flag(2)})))
      .vjp(VJP(0, logsumexp_gradient(g, x, y, Dims{c.dims(1), c.flag(2)})))
      .along(Along::Reduces);
  rules["_softmax_backward_data"]
      .jvp(TANGENT(0, on_first(t, c)), TANGENT(1, softmax_curvature(t, c[0], c[1], c.dim(2))))
      .vjp(
          VJP(0, at::_softmax_backward_data(g, c[1], c.dim(2), g.scalar_type())),
          VJP(1, softmax_backward_of_result(g, c[0], c[1], c.dim(2))))
      .along(Along::Mixes);
  rules["_log_softmax_backward_data"]
      .jvp(TANGENT(0, on_first(t, c)), TANGENT(1, log_softmax_curvature(t, c[0], c[1], c.dim(2))))
      .vjp(
          VJP(0, log_softmax_tangent(g, c[1], c.dim(2))),
          VJP(1, log_softmax_curvature(g, c[0], c[1], c.dim(2))))
      .along(Along::Mixes);
}

} // namespace torchlayers
