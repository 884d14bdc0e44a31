// Operands of different dtypes: conversions to the dtype that they have together.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/aten_functions.h"
#include "rules/operands.h"

namespace torchlayers {

// In the dtype of the result, so that what is computed from it has as many digits.
inline at::Tensor as_wide_as(const at::Tensor& x, const at::Tensor& result) {
  if (is_symbolic(x)) {
    return x.type_as(result);
  }
  return x.scalar_type() == result.scalar_type() ? x : x.to(result.scalar_type());
}

// x in the dtype of x and the other together.
inline at::Tensor promoted(const at::Tensor& x, const at::Tensor& other) {
  const bool are_alike = !is_symbolic(x) && x.scalar_type() == other.scalar_type();
  return are_alike ? x : x.to(at::result_type(x, other));
}

// x - other, where one may be boolean, which can't be subtracted as it is.
inline at::Tensor difference(const at::Tensor& x, const at::Tensor& other) {
  return promoted(x, other) - promoted(other, x);
}

} // namespace torchlayers
