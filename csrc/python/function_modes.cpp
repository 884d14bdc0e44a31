#include "python/function_modes.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

using Functions = at::impl::PythonTorchFunctionTLS;

// The mode at this position of the stack if it sets a device, or null.
PyObject* device_mode_at(int64_t i) {
  static const auto& type =
      *new py::object(imported("torch.utils._device", "DeviceContext")); // never freed
  PyObject* mode = Functions::get_stack_at(i)->ptr(getPyInterpreter());
  return reinterpret_cast<PyObject*>(Py_TYPE(mode)) == type.ptr() ? mode : nullptr;
}

} // namespace

std::optional<c10::Device> default_device() {
  if (at::impl::torch_function_all_disabled()) {
    return std::nullopt;
  }
  for (int64_t i = Functions::stack_len() - 1; i >= 0; --i) {
    if (PyObject* mode = device_mode_at(i)) {
      const py::object device = py::handle(mode).attr("device");
      return reinterpret_cast<THPDevice*>(device.ptr())->device;
    }
  }
  return std::nullopt;
}

bool overrides_functions(py::handle object) {
  if (THPVariable_CheckExact(object.ptr()) || !THPVariable_Check(object.ptr())) {
    return false;
  }
  const py::object none = imported("torch._C", "_disabled_torch_function_impl");
  const py::object own = py::type::of(object).attr("__torch_function__");
  return !own.is(none);
}

bool are_default_devices_alone() {
  for (int64_t i = 0; i < Functions::stack_len(); ++i) {
    if (device_mode_at(i) == nullptr) {
      return false;
    }
  }
  return true;
}

} // namespace torchlayers
