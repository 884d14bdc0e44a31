// Derivatives of activation functions that other functions consist of.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// The derivative of softplus(x) = log(1 + exp(x)), which is a part of logarithms of sums and of
// logistic losses.
at::Tensor softplus_slope(const at::Tensor& x);

} // namespace torchlayers
