// Keyed random numbers made by operators on tensors: for devices that have no kernel of ours, and
// for compilers, which make one of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include "rules/philox.h"

namespace torchlayers::random_of_tensors {

at::Tensor bits(
    const at::Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype, philox::Use use);
at::Tensor uniform(const at::Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype);
at::Tensor normal(const at::Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype);
at::Tensor folded(const at::Tensor& key, const at::Tensor& data);
// `alpha` has the key's shape and then that of its numbers. It looks at values.
at::Tensor gamma(const at::Tensor& key, const at::Tensor& alpha);

} // namespace torchlayers::random_of_tensors
