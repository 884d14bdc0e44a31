// Sums, means, variances and norms.
#include <cmath>

#include "dims.h"
#include "families.h"
#include "forms.h"

namespace torchlayers {
namespace {

using at::Tensor;

Tensor real_product(const Tensor& x, const Tensor& t) {
  return x.is_complex() ? at::real(x.conj() * t) : x * t;
}

// The deviations from the mean sum up to zero, so the mean's own tangent drops out.
Tensor variance_tangent(
    const Tensor& t, const Tensor& x, const Dims& over, const c10::IValue& correction) {
  const Tensor product = real_product(x - x.mean(over.dims, /*keepdim=*/true), t);
  const double taken = correction.isNone() ? 1 : correction.toScalar().toDouble();
  if (x.sym_numel() == 0) {
    return over.sum(product);
  }
  if (taken == std::floor(taken)) {
    return 2 * over.sum(product) / (over.count(x) - static_cast<int64_t>(taken));
  }
  return over.sum(product) * (2 / (static_cast<double>(over.count(x).expect_int()) - taken));
}

Tensor deviation_tangent(const Tensor& variance, const Tensor& deviation) {
  return (variance / (2 * deviation)).masked_fill(deviation == 0, 0);
}

void var(Call& call) {
  call.run();
  const Dims over{call.integers(1), call.flag(3)};
  call.set_tangent(0, variance_tangent(call.tangent(0), call[0], over, call.arg(2)));
}

void std_(Call& call) {
  call.run();
  const Dims over{call.integers(1), call.flag(3)};
  const Tensor variance = variance_tangent(call.tangent(0), call[0], over, call.arg(2));
  call.set_tangent(0, deviation_tangent(variance, call.result()));
}

void var_mean(Call& call) {
  call.run();
  const Dims over{call.integers(1), call.flag(3)};
  call.set_tangent(0, variance_tangent(call.tangent(0), call[0], over, call.arg(2)));
  call.set_tangent(1, over.mean(call.tangent(0)));
}

void std_mean(Call& call) {
  call.run();
  const Dims over{call.integers(1), call.flag(3)};
  const Tensor variance = variance_tangent(call.tangent(0), call[0], over, call.arg(2));
  call.set_tangent(0, deviation_tangent(variance, call.result(0)));
  call.set_tangent(1, over.mean(call.tangent(0)));
}

// Zero where the norm is.
Tensor over_norm(const Tensor& x, const Tensor& norm) {
  const Tensor is_zero = norm == 0;
  return (x / norm.masked_fill(is_zero, 1)).masked_fill(is_zero, 0);
}

Tensor norm_powers(const Tensor& x, double order) {
  const Tensor size = x.abs();
  const Tensor powers = size.pow(order - 1);
  return order < 1 ? powers.masked_fill(size == 0, 0) : powers;
}

// linalg_vector_norm(x, ord, dim, keepdim, dtype). At zero the subgradient 0 is taken.
void vector_norm(Call& call) {
  call.run();
  const Dims over{call.integers(2), call.flag(3)};
  const double order = call.scalar(1).toDouble();
  const Tensor& x = call[0];
  const Tensor& y = call.result();
  const Tensor t = call.tangent(0);
  if (order == 0) {
    return;
  }
  if (order == 1) {
    call.set_tangent(0, over.sum(real_product(x.sgn(), t)));
  } else if (order == 2) {
    call.set_tangent(0, over_norm(over.sum(real_product(x, t)), y));
  } else if (std::isinf(order)) {
    const Tensor is_extreme = x.abs() == over.kept(y, x.dim());
    const Tensor chosen = at::where(is_extreme, real_product(x.sgn(), t), 0);
    call.set_tangent(0, over.sum(chosen) / over.sum(is_extreme).clamp_min(1)); // none equals nan
  } else {
    const Tensor sum = over.sum(norm_powers(x, order) * real_product(x.sgn(), t));
    call.set_tangent(0, over_norm(sum, y.pow(order - 1)));
  }
}

Tensor vector_norm_gradient(
    const Tensor& g, const Tensor& x, const Tensor& y, double order, const Dims& over) {
  const Tensor norm = over.kept(y, x.dim());
  const Tensor by_norm = over.kept(g, x.dim());
  if (order == 0) {
    return at::zeros_like(x);
  }
  if (order == 1) {
    return x.sgn() * by_norm;
  }
  if (order == 2) {
    return x * over_norm(by_norm, norm);
  }
  if (std::isinf(order)) {
    const Tensor is_extreme = x.abs() == norm;
    const Dims kept{over.dims, /*keepdim=*/true};
    const Tensor share = by_norm / kept.sum(is_extreme).clamp_min(1); // none equals nan
    return at::where(is_extreme, x.sgn() * share, 0);
  }
  return x.sgn() * norm_powers(x, order) * over_norm(by_norm, norm.pow(order - 1));
}

void nansum(Call& call) {
  call.run();
  const Tensor t = at::where(call[0].isnan(), 0, call.tangent(0));
  const Dims over{call.integers(1), call.flag(2)};
  call.set_tangent(0, over.sum(t));
}

c10::SymInt numel(c10::SymIntArrayRef sizes) {
  c10::SymInt count = 1;
  for (const c10::SymInt& size : sizes) {
    count *= size;
  }
  return count;
}

// To where it was summed up from.
Tensor spread(const Tensor& g, c10::SymIntArrayRef sizes, const Dims& over) {
  return over.kept(g, static_cast<int64_t>(sizes.size())).expand_symint(sizes);
}

Tensor mean_gradient(const Tensor& g, c10::SymIntArrayRef sizes, const Dims& over) {
  return spread(g, sizes, over) / over.count(sizes);
}

Tensor cumsum_gradient(const Tensor& g, int64_t dim) {
  return g.dim() == 0 ? g : g.flip(dim).cumsum(dim).flip(dim);
}

Tensor variance_gradient(
    const Tensor& g, const Tensor& x, const Dims& over, const c10::IValue& correction) {
  const double taken = correction.isNone() ? 1 : correction.toScalar().toDouble();
  const double count = static_cast<double>(over.count(x).expect_int()) - taken;
  return (2 / count) * over.kept(g, x.dim()) * (x - x.mean(over.dims, /*keepdim=*/true));
}

} // namespace

void add_reductions(Table& rules) {
  TRANSPOSED("sum", g.expand_symint(c.sizes_of(0)));
  TRANSPOSED("sum.dim_IntList", spread(g, c.sizes_of(0), Dims{c.integers(1), c.flag(2)}));
  TRANSPOSED("mean", g.expand_symint(c.sizes_of(0)) / numel(c.sizes_of(0)));
  TRANSPOSED("mean.dim", mean_gradient(g, c.sizes_of(0), Dims{c.integers(1), c.flag(2)}));
  TRANSPOSED("cumsum", cumsum_gradient(g, c.integer(1)));
  LINEAR("trace");
  WRITTEN("nansum", nansum);
  WRITTEN("var.correction", var);
  PULLS(
      "var.correction",
      {0, PULL(variance_gradient(g, x, Dims{c.integers(1), c.flag(3)}, c.arg(2)))});
  WRITTEN("std.correction", std_);
  PULLS(
      "std.correction",
      {0,
       PULL(variance_gradient(
           deviation_tangent(g, y), x, Dims{c.integers(1), c.flag(3)}, c.arg(2)))});
  WRITTEN("var_mean.correction", var_mean);
  WRITTEN("std_mean.correction", std_mean);
  WRITTEN("linalg_vector_norm", vector_norm);
  PULLS(
      "linalg_vector_norm",
      {0,
       PULL(
           vector_norm_gradient(g, x, y, c.scalar(1).toDouble(), Dims{c.integers(2), c.flag(3)}))});
}

} // namespace torchlayers
