// Recreate one part of a tensor, its batching or its place in a graph, around the same values.
#pragma once

#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/edge.h>

namespace torchlayers {

// The value, batched along a dimension by the vmap of this stack entry.
at::Tensor batched_again(
    const at::Tensor& value, int64_t dim, const at::functorch::DynamicLayer& entry);

// A plain tensor's values at that place in autograd's graph. No mode sees this.
at::Tensor placed(const at::Tensor& tensor, const torch::autograd::Edge& place);

} // namespace torchlayers
