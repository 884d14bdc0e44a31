#include "python/function_modes.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/utils/pybind.h>

#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

using Functions = at::impl::PythonTorchFunctionTLS;

// The mode that sets it; null where none does.
PyObject* mode_at_the_bottom() {
  static const auto& type =
      *new py::object(imported("torch.utils._device", "DeviceContext")); // Python ends before this
  if (Functions::stack_len() == 0) {
    return nullptr;
  }
  PyObject* mode = Functions::get_stack_at(0)->ptr(getPyInterpreter());
  return reinterpret_cast<PyObject*>(Py_TYPE(mode)) == type.ptr() ? mode : nullptr;
}

} // namespace

std::optional<c10::Device> default_device() {
  if (C10_LIKELY(Functions::stack_len() == 0) || at::impl::torch_function_all_disabled()) {
    return std::nullopt;
  }
  PyObject* mode = mode_at_the_bottom();
  if (mode == nullptr) {
    return std::nullopt;
  }
  const py::object device = py::handle(mode).attr("device");
  return reinterpret_cast<THPDevice*>(device.ptr())->device;
}

bool is_default_device_alone() {
  return Functions::stack_len() == 1 && mode_at_the_bottom() != nullptr;
}

} // namespace torchlayers
