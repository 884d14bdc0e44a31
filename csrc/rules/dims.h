// Reductions: the dimensions that an operator reduces, and a product that several reduce.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "rules/one_pass.h"

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

} // namespace torchlayers
