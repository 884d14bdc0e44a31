// Wrappers of grad and jvp around values that have no strides.
#pragma once

#include <ATen/functorch/Interpreter.h>
#include <ATen/functorch/TensorWrapper.h>

namespace torchlayers {

// A wrapper at the interpreter's level. torch's own reads the strides of its value, which
// compressed sparse tensors (CSR, CSC, BSR, BSC) don't have, and does not know their layout; those
// get a wrapper class of ours.
at::Tensor wrapper_around(
    const at::Tensor& value,
    const at::functorch::Interpreter& interpreter,
    bool is_immutable = false);

// Updates the wrapper's sizes from its value, after a write.
void refresh(at::functorch::TensorWrapper& wrapper);

} // namespace torchlayers
