// The tensor inside a wrapper or a batched tensor, to be replaced; torch lets it only be read.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>

namespace torchlayers {

at::Tensor& value_inside(at::functorch::TensorWrapper& wrapper);
at::Tensor& value_inside(at::functorch::BatchedTensorImpl& batched);

} // namespace torchlayers
