// Python's function modes, which are called in place of torch's functions.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/Device.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace torchlayers {

// NOTE [The default device]
// torch.set_default_device puts a mode at the bottom of the stack, and `with torch.device(…)` one
// on top, which adds a device to calls of factory functions. Such a mode affects nothing else, and
// users of a GPU have it active all the time. So a fast path that any other mode would disable
// stays enabled under it.

// The device on which tensors are created by calls that name none, if one is set: the innermost.
std::optional<c10::Device> default_device();

// Whether all active modes are of that kind.
bool are_default_devices_alone();

// Whether any other mode is on the stack.
inline bool any_function_mode() {
  return C10_UNLIKELY(at::impl::PythonTorchFunctionTLS::stack_len() != 0) &&
         !are_default_devices_alone();
}

// The same, unless function modes are currently disabled.
inline bool any_enabled_function_mode() {
  return any_function_mode() && !at::impl::torch_function_all_disabled();
}

// Whether the object is a tensor of a class that overrides torch's functions; a DTensor overrides
// only operators.
bool overrides_functions(pybind11::handle object);

} // namespace torchlayers
