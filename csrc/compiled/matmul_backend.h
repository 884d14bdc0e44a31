// Matrix products, by the faster of the two libraries that torch has for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace torchlayers::compiled {

// NOTE [Two libraries for products]
// torch multiplies float32 matrices with MKL, and convolves with oneDNN. On processors with AVX-512
// that are not Intel's, MKL uses only AVX2: there oneDNN multiplies large matrices twice as fast.
// It takes longer to start, and sums in another order, which compiled code may.

// When oneDNN multiplies: where it is faster, wherever it can, or never.
enum class OneDnn { kWhereFaster, kAlways, kNever };
// Sets this; returns the previous setting.
OneDnn multiply_with(OneDnn when);

// out = alpha * one @ other + beta * added, for matrices or batches of them.
void multiply(
    const at::Tensor& out,
    const at::Tensor& one,
    const at::Tensor& other,
    const std::optional<at::Tensor>& added,
    const at::Scalar& beta,
    const at::Scalar& alpha);

} // namespace torchlayers::compiled
