// Modes of Python's, which are called in place of functions of torch.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/Device.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace torchlayers {

// NOTE [The default device]
// torch.set_default_device puts a mode at the bottom of the stack, and `with torch.device(…)` one
// on top, which adds a device to the calls that make tensors of none. It looks at nothing else, and
// who uses a GPU has it on throughout: what a mode of anybody else's turns off stays on under it.

// The device that tensors are made on where a call names none, if one is set: the innermost.
std::optional<c10::Device> default_device();

// Whether the modes are of that kind alone.
bool are_default_devices_alone();

// Whether another one is on the stack.
inline bool any_function_mode() {
  return C10_UNLIKELY(at::impl::PythonTorchFunctionTLS::stack_len() != 0) &&
         !are_default_devices_alone();
}

// Likewise, unless none is asked just now.
inline bool any_enabled_function_mode() {
  return any_function_mode() && !at::impl::torch_function_all_disabled();
}

// Whether it is a tensor of a class that overrides torch's functions; a DTensor's overrides
// operators alone.
bool overrides_functions(pybind11::handle object);

} // namespace torchlayers
