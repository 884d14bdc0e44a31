// Copying numbers without an operator.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchlayers {

// Copies the numbers of `from`, broadcast, to `to`, where there are few of them, both are plain and
// in the processor's memory, and nobody is there who would see the operator: it takes longer to
// find out what to do than to do it. False, and nothing is done, elsewhere. For the lowest layer.
bool copy_at_once(const at::Tensor& to, const at::Tensor& from);

} // namespace torchlayers
