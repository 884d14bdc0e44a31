// Reductions: the dimensions that an operator reduces, and a product that several reduce.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "rules/numbers.h"
#include "rules/one_pass.h"
#include "rules/rule.h"

namespace torchlayers {

// The real part of a product, with the conjugate of the first factor.
inline at::Tensor real_product(const at::Tensor& x, const at::Tensor& t) {
  return x.is_complex() ? at::real(x.conj() * t) : x * t;
}

struct Dims {
  std::vector<int64_t> dims; // none: all of them
  bool keepdim = false;

  at::Tensor sum(const at::Tensor& tensor) const {
    return dims.empty() && !keepdim ? tensor.sum() : tensor.sum(dims, keepdim);
  }
  // Of what an elementwise expression makes of these, the first being of full size.
  template <class Expression, class... Tensors>
  at::Tensor sum_of(
      const Expression& expression, const at::Tensor& first, const Tensors&... others) const {
    return takes_all(first) ? sum_in_one_pass(expression, first, others...)
                            : sum(in_one_pass(expression, first, others...));
  }
  // Whether one element is left, of no dimensions.
  bool takes_all(const at::Tensor& tensor) const {
    return !keepdim && (dims.empty() || static_cast<int64_t>(dims.size()) == tensor.dim());
  }
  at::Tensor mean(const at::Tensor& tensor) const {
    return tensor.mean(dims, keepdim);
  }

  // A reduced tensor with the dimensions, of size one, that it lost by it.
  at::Tensor kept(const at::Tensor& reduced, int64_t rank) const {
    if (keepdim || rank == 0) {
      return reduced;
    }
    if (dims.empty()) {
      return reduced.reshape(std::vector<int64_t>(rank, 1));
    }
    std::vector<int64_t> sorted = dims;
    for (int64_t& dim : sorted) {
      dim += dim < 0 ? rank : 0;
    }
    std::sort(sorted.begin(), sorted.end());
    at::Tensor result = reduced;
    for (int64_t dim : sorted) {
      result = result.unsqueeze(dim);
    }
    return result;
  }

  // How many elements become one.
  c10::SymInt count(c10::SymIntArrayRef sizes) const {
    c10::SymInt count = 1;
    if (dims.empty()) {
      for (const c10::SymInt& size : sizes) {
        count *= size;
      }
    } else if (!sizes.empty()) {
      for (int64_t dim : dims) {
        count *= sizes[dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim];
      }
    }
    return count;
  }
  c10::SymInt count(const at::Tensor& tensor) const {
    return count(tensor.sym_sizes());
  }
};

// What to divide the derivative of a norm by, for the subgradient zero where the norm is zero:
// infinity there. A norm has no second derivative at zero, and is to have none in any mode: what is
// differentiated again below is the reciprocal of zero, whose derivative is nan.
inline at::Tensor nonzero(const at::Tensor& divisor, const at::Tensor& norm, bool differentiated) {
  return differentiated ? at::where(norm == 0, norm.reciprocal(), divisor)
                        : at::where(norm == 0, INFINITY, divisor);
}

inline at::Tensor over_norm(const at::Tensor& numerator, const at::Tensor& norm) {
  if (is_differentiated_below({numerator, norm})) {
    return numerator / nonzero(norm, norm, true);
  }
  return in_one_pass(
      [](const auto& numerator, const auto& norm) {
        return numerator / where(norm == 0, INFINITY, norm);
      },
      numerator,
      norm);
}

} // namespace torchlayers
