// Derives keys for keyed random draws. NOTE [Numbers of a key].
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// A new key for each pair of a key and a number; goes through the active layers.
at::Tensor fold_in(const at::Tensor& key, const at::Tensor& data);

} // namespace torchlayers
