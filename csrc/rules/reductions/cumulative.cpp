// prod and cumprod, whose derivatives are cumulative products too, and logcumsumexp.
#include <ATen/TensorSubclassLikeUtils.h>

#include <limits>

#include "core/device.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// NOTE [Elements without a factor]
// The first product has no factor, and the first element of a recurrence no predecessor. Written as
// ones and zeros they would have tangents and cotangents of zero, which the next derivative
// multiplies by factors that may be infinite. So they are computed apart, and joined at the end.

// The products of the first, the first two, ... elements, without that of all; and of the last, the
// last two, ..., ending with the last.
Tensor products_before(const Tensor& x, int64_t dim) {
  return x.narrow_symint(dim, 0, x.sym_size(dim) - 1).cumprod(dim);
}
Tensor products_after(const Tensor& x, int64_t dim) {
  return products_before(x.flip(dim), dim).flip(dim);
}

Tensor first_of(const Tensor& x, int64_t dim) {
  return x.narrow(dim, 0, 1);
}
Tensor last_of(const Tensor& x, int64_t dim) {
  return x.narrow(dim, -1, 1);
}
Tensor without_first(const Tensor& x, int64_t dim) {
  return x.narrow_symint(dim, 1, x.sym_size(dim) - 1);
}
Tensor without_last(const Tensor& x, int64_t dim) {
  return x.narrow_symint(dim, 0, x.sym_size(dim) - 1);
}

// Solves y[0] = first, y[k] = terms[k] + factors[k] y[k-1] for k > 0, by recursive doubling: each
// step doubles the number of terms that y[k] includes. terms, factors and the result are without
// k = 0. products has, for each k from reach on, the product of that many factors, ending with
// factors[k]; and no product that no y[k] includes: its zero cotangent would be multiplied by
// factors that may be infinite.
Tensor recurrence(const Tensor& first, const Tensor& terms, const Tensor& factors, int64_t dim) {
  const c10::SymInt length = terms.sym_size(dim);
  Tensor y = terms;
  Tensor products = factors;
  for (c10::SymInt reach = 1; reach <= length; reach = reach * 2) {
    const c10::SymInt rest = length - reach;
    const Tensor of_first = y.narrow_symint(dim, reach - 1, 1) + products.narrow(dim, 0, 1) * first;
    const Tensor of_others = y.narrow_symint(dim, reach, rest) +
                             products.narrow_symint(dim, 1, rest) * y.narrow_symint(dim, 0, rest);
    y = at::cat({y.narrow_symint(dim, 0, reach - 1), of_first, of_others}, dim);
    if (rest >= reach) {
      const c10::SymInt count = rest + 1 - reach;
      products = products.narrow_symint(dim, reach, count) * products.narrow_symint(dim, 0, count);
    }
  }
  return y;
}

Tensor sum_back(const Tensor& x, int64_t dim) {
  return x.flip(dim).cumsum(dim).flip(dim);
}

// Whether a product may be divided by its factors: it can be read without waiting for a device, and
// is neither zero, infinite nor nan (any other number divided by itself is one).
bool is_divisible(const Tensor& product) {
  if (at::isTensorSubclassLike(product) || !is_in_host_memory(*product.unsafeGetTensorImpl())) {
    return false;
  }
  const Tensor size = product.abs();
  return (size / size == 1).all().item<bool>();
}

// For each element, the product of all others; y is the product of all.
Tensor product_of_others(const Tensor& x, const Tensor& y, int64_t dim) {
  if (is_divisible(y)) {
    return y / x;
  }
  const c10::SymInt size = x.sym_size(dim);
  if (size < 2) {
    return at::ones_like(x);
  }
  const Tensor before = products_before(x, dim);
  const Tensor after = products_after(x, dim);
  return at::cat(
      {first_of(after, dim),
       without_last(before, dim) * without_first(after, dim),
       last_of(before, dim)},
      dim);
}

// prod(x, dtype)
Tensor product_tangent(const Tensor& t, const Tensor& x, const Tensor& y) {
  const Tensor flat = x.reshape(-1).to(y.scalar_type());
  return (product_of_others(flat, y, 0) * t.reshape(-1)).sum();
}

Tensor product_gradient(const Tensor& g, const Tensor& x, const Tensor& y) {
  const Tensor flat = x.reshape(-1).to(y.scalar_type());
  return (g * conjugated(product_of_others(flat, y, 0))).view_symint(x.sym_sizes());
}

// prod.dim_int(x, dim, keepdim, dtype)
Tensor product_tangent_along(
    const Tensor& t, const Tensor& x, const Tensor& y, int64_t dim, bool keepdim) {
  if (x.dim() == 0) {
    return t;
  }
  const Tensor kept = keepdim ? y : y.unsqueeze(dim);
  return (product_of_others(x.to(y.scalar_type()), kept, dim) * t).sum(dim, keepdim);
}

Tensor product_gradient_along(
    const Tensor& g, const Tensor& x, const Tensor& y, int64_t dim, bool keepdim) {
  if (x.dim() == 0) {
    return g;
  }
  const auto kept = [&](const Tensor& reduced) {
    return keepdim ? reduced : reduced.unsqueeze(dim);
  };
  return kept(g) * conjugated(product_of_others(x.to(y.scalar_type()), kept(y), dim));
}

// cumprod(x, dim, dtype): y'[k] = x'[k] y[k-1] + x[k] y'[k-1]
Tensor cumprod_tangent(const Tensor& t, const Tensor& x, const Tensor& y, int64_t dim) {
  if (x.dim() == 0 || x.sym_numel() == 0) {
    return t;
  }
  const Tensor factors = x.to(y.scalar_type());
  if (is_divisible(y.select(dim, -1))) {
    return y * (t / factors).cumsum(dim);
  }
  const Tensor first = first_of(t, dim);
  const Tensor terms = without_first(t, dim) * products_before(factors, dim);
  return at::cat({first, recurrence(first, terms, without_first(factors, dim), dim)}, dim);
}

Tensor cumprod_gradient(const Tensor& g, const Tensor& x, const Tensor& y, int64_t dim) {
  if (x.dim() == 0 || x.sym_numel() == 0) {
    return g;
  }
  const Tensor factors = conjugated(x.to(y.scalar_type()));
  if (is_divisible(y.select(dim, -1))) {
    return sum_back(g * conjugated(y), dim) / factors;
  }
  if (x.sym_size(dim) == 1) {
    return g;
  }
  // From the last one on: carried[k] = g[k] + factors[k+1] carried[k+1].
  const Tensor last = last_of(g, dim);
  const Tensor carried =
      recurrence(last, without_last(g, dim).flip(dim), without_first(factors, dim).flip(dim), dim)
          .flip(dim);
  const Tensor before = products_before(factors, dim);
  return at::cat(
      {first_of(carried, dim),
       without_last(before, dim) * without_first(carried, dim),
       last_of(before, dim) * last},
      dim);
}

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// The share of each element's exponential in the sum that ends with it.
Tensor shares_of_elements(const Tensor& x, const Tensor& y) {
  return (x - y).masked_fill(at::real(y) == kNothing, kNothing).exp();
}

// The share of each sum of exponentials in the next one. Where the next sum is
// zero or infinite the share is zero too: 0 / 0 and inf / inf would be nan. A large share is
// computed as one minus the element's share, so that the two add up to one: shares are multiplied
// along the whole dimension, which would accumulate their errors.
Tensor shares_of_sums(const Tensor& y, const Tensor& shares_of_elements, int64_t dim) {
  const c10::SymInt rest = y.sym_size(dim) - 1;
  const Tensor next = y.narrow_symint(dim, 1, rest);
  const Tensor none = at::real(next).isinf();
  Tensor share = (y.narrow_symint(dim, 0, rest) - next).masked_fill(none, kNothing).exp();
  if (!y.is_complex()) {
    const Tensor left = 1 - shares_of_elements.narrow_symint(dim, 1, rest);
    share = at::where((left > 0.5).logical_and(none.logical_not()), left, share);
  }
  return share;
}

// logcumsumexp(x, dim): y'[k] = e[k] x'[k] + s[k] y'[k-1], with the shares of elements and of sums.
// No logarithm of a tangent or cotangent is taken: those may be zero or negative.
Tensor logcumsumexp_tangent(const Tensor& t, const Tensor& x, const Tensor& y, int64_t dim) {
  if (x.dim() == 0 || x.sym_numel() == 0) {
    return t;
  }
  const Tensor elements = shares_of_elements(x, y);
  const Tensor terms = elements * t;
  const Tensor first = first_of(terms, dim);
  const Tensor shares = shares_of_sums(y, elements, dim);
  return at::cat({first, recurrence(first, without_first(terms, dim), shares, dim)}, dim);
}

Tensor logcumsumexp_gradient(const Tensor& g, const Tensor& x, const Tensor& y, int64_t dim) {
  if (x.dim() == 0 || x.sym_numel() == 0) {
    return g;
  }
  const Tensor elements = shares_of_elements(x, y);
  const Tensor last = last_of(g, dim);
  const Tensor shares = conjugated(shares_of_sums(y, elements, dim));
  const Tensor carried =
      recurrence(last, without_last(g, dim).flip(dim), shares.flip(dim), dim).flip(dim);
  return conjugated(elements) * at::cat({carried, last}, dim);
}

} // namespace

void add_cumulative(Table& rules) {
  rules["prod"]
      .jvp(TANGENT(0, product_tangent(t, x, y)))
      .vjp(VJP(0, product_gradient(g, x, y)))
      .along(Along::Reduces);
  rules["prod.dim_int"]
      .jvp(TANGENT(0, product_tangent_along(t, x, y, c.dim(1), c.flag(2))))
      .vjp(VJP(0, product_gradient_along(g, x, y, c.dim(1), c.flag(2))))
      .along(Along::Reduces);
  rules["cumprod"]
      .jvp(TANGENT(0, cumprod_tangent(t, x, y, c.dim(1))))
      .vjp(VJP(0, cumprod_gradient(g, x, y, c.dim(1))))
      .along(Along::Scans);
  rules["logcumsumexp"]
      .jvp(TANGENT(0, logcumsumexp_tangent(t, x, y, c.dim(1))))
      .vjp(VJP(0, logcumsumexp_gradient(g, x, y, c.dim(1))))
      .along(Along::Scans);
  rules["_logcumsumexp"].along(Along::Scans);
}

} // namespace torchlayers
