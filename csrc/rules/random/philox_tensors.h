// Keyed random numbers by operators on tensors: for devices for which we have no kernel, and for
// compilers, which fuse the operators into one kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>

#include "rules/random/philox.h"

namespace torchlayers::random_of_tensors {

// The two numbers in (0, 1), of 53 bits, that a key's block yields.
std::array<at::Tensor, 2> two_uniform(
    const at::Tensor& place, philox::Use use, int64_t attempt, const at::Tensor& key);

at::Tensor bits(
    const at::Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype, philox::Use use);
at::Tensor uniform(const at::Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype);
at::Tensor normal(const at::Tensor& key, c10::SymIntArrayRef size, at::ScalarType dtype);
at::Tensor folded(const at::Tensor& key, const at::Tensor& data);
// The shape of `alpha` is the key's followed by that of its numbers. Reads values, so it
// synchronizes with the device.
at::Tensor gamma(const at::Tensor& key, const at::Tensor& alpha);

} // namespace torchlayers::random_of_tensors
