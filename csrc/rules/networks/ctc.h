// What the rules of ctc_loss and its decomposition share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torchlayers {

// The lengths of series or targets, numbers or a tensor, as a tensor on like's device.
at::Tensor lengths_of(const c10::IValue& lengths, const at::Tensor& like);

} // namespace torchlayers
