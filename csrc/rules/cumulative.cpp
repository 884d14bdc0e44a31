// prod and cumprod, whose derivatives are cumulative products too, and logcumsumexp.
#include <ATen/TensorSubclassLikeUtils.h>

#include <limits>

#include "core/device.h"
#include "rules/families.h"
#include "rules/rule_macros.h"

namespace torchlayers {
namespace {

using at::Tensor;

// The product of all elements before each. The one that begins it is no factor: its zero tangent
// would be multiplied by factors that may be infinite.
Tensor product_before(const Tensor& x, int64_t dim) {
  if (x.sym_size(dim) == 0) {
    return x;
  }
  const Tensor kept = x.narrow_symint(dim, 0, x.sym_size(dim) - 1);
  return at::cat({at::ones_like(x.narrow(dim, 0, 1)), kept.cumprod(dim)}, dim);
}

// Solves y[k] = terms[k] + factors[k] y[k-1], where factors[0] is ignored, by recursive doubling:
// each step doubles the number of terms that y[k] includes. products has, for each k from reach on,
// the product of that many factors, ending with factors[k]; and no product that no y[k] includes:
// its zero cotangent would be multiplied by factors that may be infinite.
Tensor recurrence(const Tensor& terms, const Tensor& factors, int64_t dim) {
  const c10::SymInt length = terms.sym_size(dim);
  Tensor y = terms;
  Tensor products = factors.narrow_symint(dim, 1, length - 1);
  for (c10::SymInt reach = 1; reach < length; reach = reach * 2) {
    const c10::SymInt rest = length - reach;
    const Tensor carried = products * y.narrow_symint(dim, 0, rest);
    const Tensor summed = y.narrow_symint(dim, reach, rest) + carried;
    y = at::cat({y.narrow_symint(dim, 0, reach), summed}, dim);
    if (rest > reach) {
      const c10::SymInt count = rest - reach;
      products = products.narrow_symint(dim, reach, count) * products.narrow_symint(dim, 0, count);
    }
  }
  return y;
}

// y[k] = terms[k] + factors[k+1] y[k+1]
Tensor recurrence_back(const Tensor& terms, const Tensor& factors, int64_t dim) {
  return recurrence(terms.flip(dim), factors.flip(dim).roll(1, dim), dim).flip(dim);
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
  return product_before(x, dim) * product_before(x.flip(dim), dim).flip(dim);
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
  return recurrence(t * product_before(factors, dim), factors, dim);
}

Tensor cumprod_gradient(const Tensor& g, const Tensor& x, const Tensor& y, int64_t dim) {
  if (x.dim() == 0 || x.sym_numel() == 0) {
    return g;
  }
  const Tensor factors = conjugated(x.to(y.scalar_type()));
  if (is_divisible(y.select(dim, -1))) {
    return sum_back(g * conjugated(y), dim) / factors;
  }
  return product_before(factors, dim) * recurrence_back(g, factors, dim);
}

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// The share of each element's exponential in the sum that ends with it.
Tensor shares_of_elements(const Tensor& x, const Tensor& y) {
  return (x - y).masked_fill(at::real(y) == kNothing, kNothing).exp();
}

// The share of each sum of exponentials in the next one; the first has none. Where the next sum is
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
  return at::cat({at::zeros_like(y.narrow(dim, 0, 1)), share}, dim);
}

// logcumsumexp(x, dim): y'[k] = e[k] x'[k] + s[k] y'[k-1], with the shares of elements and of sums.
// No logarithm of a tangent or cotangent is taken: those may be zero or negative.
Tensor logcumsumexp_tangent(const Tensor& t, const Tensor& x, const Tensor& y, int64_t dim) {
  if (x.dim() == 0 || x.sym_numel() == 0) {
    return t;
  }
  const Tensor elements = shares_of_elements(x, y);
  return recurrence(elements * t, shares_of_sums(y, elements, dim), dim);
}

Tensor logcumsumexp_gradient(const Tensor& g, const Tensor& x, const Tensor& y, int64_t dim) {
  if (x.dim() == 0 || x.sym_numel() == 0) {
    return g;
  }
  const Tensor elements = shares_of_elements(x, y);
  const Tensor carried = recurrence_back(g, conjugated(shares_of_sums(y, elements, dim)), dim);
  return conjugated(elements) * carried;
}

} // namespace

void add_cumulative(Table& rules) {
  rules["prod"].jvp(TANGENT(0, product_tangent(t, x, y))).vjp(VJP(0, product_gradient(g, x, y)));
  rules["prod.dim_int"]
      .jvp(TANGENT(0, product_tangent_along(t, x, y, c.integer(1), c.flag(2))))
      .vjp(VJP(0, product_gradient_along(g, x, y, c.integer(1), c.flag(2))));
  rules["cumprod"]
      .jvp(TANGENT(0, cumprod_tangent(t, x, y, c.integer(1))))
      .vjp(VJP(0, cumprod_gradient(g, x, y, c.integer(1))));
  rules["logcumsumexp"]
      .jvp(TANGENT(0, logcumsumexp_tangent(t, x, y, c.integer(1))))
      .vjp(VJP(0, logcumsumexp_gradient(g, x, y, c.integer(1))));
}

} // namespace torchlayers
