#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <string>

#include "python/calls/calls.h"
#include "python/function_modes.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

using AlongAxis = at::Tensor(const at::Tensor&, const std::string&);

c10::TypedOperatorHandle<AlongAxis> along(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<AlongAxis>();
}

} // namespace

// call_along(which, x, axis): psum and operators with the same arguments, called by their typed
// signature, in half the time of torch.ops. Returns None if something intercepts such calls.
py::object call_along(PyObject* const* passed) {
  static const std::array operators{
      along("torchlayers::psum"),
      along("torchlayers::psum_invariant"),
      along("torchlayers::pvary"),
      along("torchlayers::pmax")};
  if (!THPVariable_CheckExact(passed[1]) || any_function_mode()) {
    return py::none();
  }
  const auto& op = operators.at(PyLong_AsSize_t(passed[0]));
  const at::Tensor& x = THPVariable_Unpack(passed[1]);
  const auto axis = py::cast<std::string>(passed[2]);
  at::Tensor result;
  {
    const py::gil_scoped_release released;
    result = op.call(x, axis);
  }
  return py::cast(result);
}

} // namespace torchlayers
