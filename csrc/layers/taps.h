// Values of inner levels, as an outer level sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace torchlayers {

// What a tensor is when the levels above this one are over: with a dimension in front for each vmap
// among them, the outermost first, whether it is batched there or not; without its derivatives.
at::Tensor seen_from(const at::Tensor& tensor, int64_t level);

// The inverse, of a tensor with those dimensions: a sample of it at the top level.
at::Tensor sample_of(at::Tensor tensor, int64_t level);

// The tensor of that level that the levels above it hold as this one, and where each vmap among
// them has its dimension, the outermost first; -1 where it is alike for all samples.
std::pair<at::Tensor, std::vector<int64_t>> held_at(const at::Tensor& tensor, int64_t level);

} // namespace torchlayers
