// Reductions: the dimensions that an operator reduces, and helpers for their derivatives.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/aten_functions.h"
#include "rules/rule.h"
#include "rules/small_tensors/scalar_fast_path.h"
#include "rules/small_tensors/scalar_math.h"

namespace torchlayers {

// The real part of a product, with the conjugate of the first factor.
inline at::Tensor real_product(const at::Tensor& x, const at::Tensor& t) {
  return x.is_complex() ? at::real(x.conj() * t) : x * t;
}

struct Dims {
  std::vector<int64_t> dims; // empty: all of them
  bool keepdim = false;

  at::Tensor sum(const at::Tensor& tensor) const {
    return dims.empty() && !keepdim ? tensor.sum() : tensor.sum(dims, keepdim);
  }
  // The sum of an elementwise expression of these tensors, of which the first has the full size.
  template <class Expression, class... Tensors>
  at::Tensor sum_of(
      const Expression& expression, const at::Tensor& first, const Tensors&... others) const {
    return takes_all(first) ? sum_in_one_pass(expression, first, others...)
                            : sum(in_one_pass(expression, first, others...));
  }
  // Whether the reduction leaves a single element, without dimensions.
  bool takes_all(const at::Tensor& tensor) const {
    return !keepdim && (dims.empty() || static_cast<int64_t>(dims.size()) == tensor.dim());
  }
  at::Tensor mean(const at::Tensor& tensor) const {
    return tensor.mean(dims, keepdim);
  }

  // A reduced tensor with the dimensions that it lost put back, with size one.
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

  // How many elements are reduced to one.
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

// The divisor for the derivative of a norm. It is infinite where the norm is zero, which gives the
// subgradient zero. A norm has no second derivative at zero, and must not get one in any mode: if
// the derivative is differentiated again below, the divisor is the reciprocal of zero, whose
// derivative is nan.
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
