// Replaces the tensor inside a wrapper or a batched tensor, which torch lets only be read.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>

#include "core/layer.h"

namespace torchlayers {

at::Tensor& value_inside(at::functorch::TensorWrapper& wrapper);
at::Tensor& value_inside(at::functorch::BatchedTensorImpl& batched);

// For detach_(), which holds at all levels as detach() does: detaches the value inside a tensor of
// this layer. The value itself stays as it is: what the layer's graph has saved of it is still
// differentiated below.
void detach_value_inside(const at::Tensor& tensor, const Layer& layer, const Operator& op);

} // namespace torchlayers
