#include "python/patches/function_apply.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>

#include "core/keys.h"
#include "core/stack.h"
#include "python/function_modes.h"
#include "python/patches/patches.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

PyCFunctionWithKeywords torchs_apply = nullptr;
PyObject* our_apply = nullptr;

PyObject* apply(PyObject* function, PyObject* args, PyObject* kwargs) {
  if (!any_layer()) {
    return torchs_apply(function, args, kwargs);
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  THPObjectPtr all(PyTuple_New(count + 1));
  if (!all) {
    return nullptr;
  }
  PyTuple_SET_ITEM(all.get(), 0, Py_NewRef(function));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(all.get(), i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
  }
  return PyObject_Call(our_apply, all.get(), kwargs);
}

py::object call_torchs(const py::object& function, const py::args& args, const py::kwargs& kwargs) {
  PyObject* named = kwargs.empty() ? nullptr : kwargs.ptr();
  PyObject* result = torchs_apply(function.ptr(), args.ptr(), named);
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(result);
}

// Whether a call binds this many operands as they are: to a Python function without defaults to
// fill in, and without a signature of its own.
bool binds(PyObject* forward, Py_ssize_t count) {
  if (!PyFunction_Check(forward)) {
    return false;
  }
  const auto* function = reinterpret_cast<PyFunctionObject*>(forward);
  if (function->func_dict != nullptr && PyDict_GET_SIZE(function->func_dict) > 0) {
    return false; // as functools.wraps leaves it
  }
  const auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  if (code->co_kwonlyargcount > 0 || (code->co_flags & CO_VARKEYWORDS) != 0) {
    return false;
  }
  return (code->co_flags & CO_VARARGS) != 0 ? count >= code->co_argcount
                                            : count == code->co_argcount;
}

// Whether torch's dispatch passes the operand on as it is: a tensor, or a number or text.
bool is_passed_on(PyObject* operand) {
  if (THPVariable_Check(operand)) {
    return !overrides_functions(operand) && !has_dead_wrapper(THPVariable_Unpack(operand));
  }
  return operand == Py_None || PyLong_Check(operand) || PyFloat_Check(operand) ||
         PyUnicode_Check(operand);
}

// Whether torch's apply would bind these operands as they are, and its dispatch would lead to our
// front key, past every mode.
bool leads_to_front(const py::object& forward, const py::tuple& operands) {
  const auto& keys = thread_keys();
  const bool is_front_next = (keys.included() - keys.excluded()).highestPriorityTypeId() == kFront;
  if (!is_front_next || at::impl::torch_function_mode_enabled() ||
      !binds(forward.ptr(), static_cast<Py_ssize_t>(operands.size()))) {
    return false;
  }
  return std::all_of(operands.begin(), operands.end(), [](py::handle operand) {
    return is_passed_on(operand.ptr());
  });
}

void patch_function_apply(const py::object& make) {
  const py::dict attributes =
      py::module_::import("torch.autograd").attr("Function").attr("__dict__");
  const py::object found = attributes["apply"];
  if (!Py_IS_TYPE(found.ptr(), &PyClassMethodDescr_Type)) {
    return;
  }
  PyMethodDef& method = *reinterpret_cast<PyMethodDescrObject*>(found.ptr())->d_method;
  if (method.ml_flags != (METH_VARARGS | METH_KEYWORDS | METH_CLASS)) {
    return;
  }
  our_apply = py::object(make(py::cpp_function(&call_torchs))).release().ptr();
  torchs_apply =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(add_pointer_patch(
          method.ml_meth, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&apply)))));
}

} // namespace

void bind_function_apply(py::module_& m) {
  m.def("patch_function_apply", &patch_function_apply);
  m.def("leads_to_front", &leads_to_front);
}

} // namespace torchlayers
