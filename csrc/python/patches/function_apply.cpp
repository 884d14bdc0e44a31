#include "python/patches/function_apply.h"

#include <torch/csrc/utils/object_ptr.h>

#include "core/stack.h"
#include "python/patches/patches.h"

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
}

} // namespace torchlayers
