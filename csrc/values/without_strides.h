// Wrappers of grad and jvp around values that have no strides.
#pragma once

#include <ATen/functorch/Interpreter.h>
#include <ATen/functorch/TensorWrapper.h>

namespace torchlayers {

// A wrapper of the interpreter's level. torch's asks the value for its strides, which compressed
// sparse tensors (CSR, CSC, BSR, BSC) refuse, and does not know their layout; those get one of
// ours.
at::Tensor wrapper_around(
    const at::Tensor& value,
    const at::functorch::Interpreter& interpreter,
    bool is_immutable = false);

// Lets the wrapper know its value's size, after a write.
void refresh(at::functorch::TensorWrapper& wrapper);

} // namespace torchlayers
