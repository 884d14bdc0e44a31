#include "python/patches/coo_tensor.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

#include "core/stack.h"
#include "python/patches/patches.h"
#include "python/tree.h"

namespace torchlayers {

namespace py = pybind11;

namespace {

PyCFunctionWithKeywords torchs = nullptr;

PyObject* coo_tensor(PyObject* module, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  if (any_layer()) {
    const auto entries = imported("torchlayers.transforms.sparse.coo_entries", "entries_of_values");
    THPObjectPtr made(PyObject_Call(entries.ptr(), args, kwargs));
    if (!made || made.get() != Py_None) {
      return made.release();
    }
  }
  return torchs(module, args, kwargs);
  END_HANDLE_TH_ERRORS
}

} // namespace

void patch_coo_tensor(py::module_& m) {
  const py::object found = py::module_::import("torch").attr("sparse_coo_tensor");
  if (PyCFunction_Check(found.ptr())) {
    PyMethodDef& method = *reinterpret_cast<PyCFunctionObject*>(found.ptr())->m_ml;
    if ((method.ml_flags & METH_VARARGS) != 0 && (method.ml_flags & METH_KEYWORDS) != 0) {
      torchs = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(add_pointer_patch(
          method.ml_meth, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&coo_tensor)))));
    }
  }
  const py::object module = py::reinterpret_borrow<py::object>(PyCFunction_GET_SELF(found.ptr()));
  m.def("torch_coo_tensor", [found, module](const py::args& args, const py::kwargs& kwargs) {
    PyObject* made = torchs != nullptr ? torchs(module.ptr(), args.ptr(), kwargs.ptr())
                                       : PyObject_Call(found.ptr(), args.ptr(), kwargs.ptr());
    if (made == nullptr) {
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(made);
  });
}

} // namespace torchlayers
