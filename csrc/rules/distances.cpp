// Norms of vectors, and distances between them.
#include <cmath>

#include "dims.h"
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor powers_of(const Tensor& size, double order) {
  const Tensor powers = size.pow(order - 1);
  return order < 1 ? powers.masked_fill(size == 0, 0) : powers;
}

double order_of(const c10::IValue& order) {
  return order.isNone() ? 2 : order.toScalar().toDouble();
}

// Of (sum |x|^order)^(1/order). At zero the subgradient 0 is taken.
Tensor norm_tangent(
    const Tensor& t, const Tensor& x, const Tensor& y, double order, const Dims& over) {
  if (order == 0) {
    return {};
  }
  if (order == 1) {
    return over.sum(real_product(x.sgn(), t));
  }
  if (order == 2) {
    const Tensor product =
        x.is_complex() ? real_product(x, t)
                       : in_one_pass([](const auto& x, const auto& t) { return x * t; }, x, t);
    return in_one_pass(
        [](const auto& sum, const auto& norm) { return where(norm == 0, 0, sum / norm); },
        over.sum(product),
        y);
  }
  if (std::isinf(order)) {
    const Tensor is_extreme = x.abs() == over.kept(y, x.dim());
    const Tensor chosen = at::where(is_extreme, real_product(x.sgn(), t), 0);
    return over.sum(chosen) / over.sum(is_extreme).clamp_min(1); // none equals nan
  }
  const Tensor sum = over.sum(powers_of(x.abs(), order) * real_product(x.sgn(), t));
  return (sum / y.pow(order - 1)).masked_fill(y == 0, 0);
}

Tensor norm_gradient(
    const Tensor& g, const Tensor& x, const Tensor& y, double order, const Dims& over) {
  if (order == 0) {
    return {};
  }
  const Tensor along = over.kept(g, x.dim());
  if (order == 1) {
    return x.sgn() * along;
  }
  const Tensor norm = over.kept(y, x.dim());
  const auto unless_zero = [&](const Tensor& divisor) {
    return divisor.masked_fill(norm == 0, INFINITY); // so that second derivatives are zero too
  };
  if (order == 2) {
    return x * (along / unless_zero(norm));
  }
  if (std::isinf(order)) {
    const Tensor is_extreme = x.abs() == norm;
    const Tensor count = Dims{over.dims, /*keepdim=*/true}.sum(is_extreme).clamp_min(1);
    return at::where(is_extreme, x.sgn() * (along / count), 0);
  }
  return x.sgn() * powers_of(x.abs(), order) * (along / unless_zero(norm.pow(order - 1)));
}

// linalg_vector_norm(x, order, dim, keepdim, …)
void vector_norm(Call& call) {
  call.run();
  const Dims over{call.integers(2), call.flag(3)};
  call.set_tangent(
      0, norm_tangent(call.tangent(0), call[0], call.result(), order_of(call.arg(1)), over));
}

} // namespace

void add_distances(Table& rules) {
  for (const char* name : {"linalg_vector_norm", "norm.ScalarOpt_dim"}) {
    WRITTEN(name, vector_norm);
    PULLS(
        name,
        {0, PULL(norm_gradient(g, x, y, order_of(c.arg(1)), Dims{c.integers(2), c.flag(3)}))});
  }
  TERMS(
      "dist",
      {0, TANGENT(norm_tangent(t, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false}))},
      {1, TANGENT(norm_tangent(-t, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false}))});
  PULLS(
      "dist",
      {0, PULL(norm_gradient(g, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false}))},
      {1, PULL(norm_gradient(-g, c[0] - c[1], y, order_of(c.arg(2)), Dims{{}, false}))});
  PULLS(
      "_cdist_forward",
      {0, PULL(at::_cdist_backward(g.contiguous(), c[0], c[1], c.number(2), y))},
      {1,
       PULL(
           at::_cdist_backward(
               g.mT().contiguous(), c[1], c[0], c.number(2), y.mT().contiguous()))});
  PULLS("_pdist_forward", {0, PULL(at::_pdist_backward(g, x, c.number(1), y))});
}

} // namespace torchlayers
