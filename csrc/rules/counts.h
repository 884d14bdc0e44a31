// Numbers that count, by a key: Poisson and binomial. NOTE [Numbers of a key].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torchlayers::counts {

// Number `place` of a key; nan where no distribution has these parameters.
double poisson(int64_t key, int64_t place, double rate);
double binomial(int64_t key, int64_t place, double count, double prob);

// The same, of tensors of any device, which have the key's shape and then that of its numbers.
// They look at values.
at::Tensor poisson(const at::Tensor& key, const at::Tensor& rate);
at::Tensor binomial(const at::Tensor& key, const at::Tensor& count, const at::Tensor& prob);

} // namespace torchlayers::counts
