// Keyed random numbers of the Poisson and the binomial distribution. NOTE [Numbers of a key].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torchlayers::counts {

// Number `place` of a key; nan where the parameters are invalid.
double poisson(int64_t key, int64_t place, double rate);
double binomial(int64_t key, int64_t place, double count, double prob);

// The same on tensors of any device, whose shape is the key's followed by that of its numbers.
// These functions read values, so they synchronize with the device.
at::Tensor poisson(const at::Tensor& key, const at::Tensor& rate);
at::Tensor binomial(const at::Tensor& key, const at::Tensor& count, const at::Tensor& prob);

} // namespace torchlayers::counts
