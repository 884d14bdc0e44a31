// Products with the inverse of a triangular matrix, and parts of matrices.
#pragma once

#include "core/aten_functions.h"

namespace torchlayers {

// matrix triangle^-1 and triangle^-1 matrix.
inline at::Tensor times_inverse(
    const at::Tensor& matrix, const at::Tensor& triangle, bool is_upper) {
  return at::linalg_solve_triangular(triangle, matrix, is_upper, /*left=*/false);
}
inline at::Tensor inverse_times(
    const at::Tensor& triangle, const at::Tensor& matrix, bool is_upper, bool has_ones = false) {
  return at::linalg_solve_triangular(triangle, matrix, is_upper, /*left=*/true, has_ones);
}

inline at::Tensor with_columns(const at::Tensor& matrix, const c10::SymInt& count) {
  const c10::SymInt missing = count - matrix.sym_size(-1);
  return missing > 0 ? at::constant_pad_nd_symint(matrix, {0, missing}) : matrix;
}

// The rows or columns of a matrix before a position, and from there on.
inline at::Tensor head(const at::Tensor& matrix, int64_t dim, const c10::SymInt& count) {
  return matrix.narrow_symint(dim, 0, count);
}
inline at::Tensor tail(const at::Tensor& matrix, int64_t dim, const c10::SymInt& count) {
  return matrix.narrow_symint(dim, count, matrix.sym_size(dim) - count);
}

// matrix U^-1 for the first columns; the others are zero.
inline at::Tensor times_inverse_of_first(
    const at::Tensor& matrix, const at::Tensor& u, const c10::SymInt& count, bool is_upper) {
  const at::Tensor square = head(head(u, -2, count), -1, count);
  return with_columns(
      times_inverse(head(matrix, -1, count), square, is_upper), matrix.sym_size(-1));
}

} // namespace torchlayers
