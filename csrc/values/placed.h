// Tensors made again of the same numbers, for those who make one of its parts.
#pragma once

#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/edge.h>

namespace torchlayers {

// A value batched along a dimension by the vmap of this entry of the stack.
at::Tensor batched_again(
    const at::Tensor& value, int64_t dim, const at::functorch::DynamicLayer& entry);

// A plain tensor's numbers at that place of autograd's graph. No mode sees it.
at::Tensor placed(const at::Tensor& tensor, const torch::autograd::Edge& place);

} // namespace torchlayers
