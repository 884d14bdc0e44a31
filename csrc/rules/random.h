// Keys for whoever draws by them. NOTE [Numbers of a key].
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// A key of each key and number; on the layers that are active.
at::Tensor fold_in(const at::Tensor& key, const at::Tensor& data);

} // namespace torchlayers
