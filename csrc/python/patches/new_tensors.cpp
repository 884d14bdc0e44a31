#include "python/patches/new_tensors.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "core/keys.h"
#include "python/patches/patches.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using Constructor = PyCFunctionWithKeywords;

at::Tensor innermost(const at::Tensor& tensor) {
  const at::Tensor& holder = holder_of(tensor);
  return at::functionalization::impl::isFunctionalTensor(holder)
             ? innermost(at::functionalization::impl::from_functional_tensor(holder))
             : holder;
}

// Both methods read only the dtype and the device of x, which equal those of the value inside.
// Subclasses of torch.Tensor go to torch's method unchanged.
template <Constructor& torchs>
PyObject* of_value(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (THPVariable_CheckExact(self)) {
    const at::Tensor& tensor = THPVariable_Unpack(self);
    if (tensor.key_set().has(kFront)) {
      THPObjectPtr value(THPVariable_Wrap(innermost(tensor)));
      return torchs(value.get(), args, kwargs);
    }
  }
  return torchs(self, args, kwargs);
}

Constructor torchs_new = nullptr;
Constructor torchs_new_tensor = nullptr;

template <Constructor& torchs>
void patch_constructor(const char* name) {
  THPObjectPtr found(PyObject_GetAttrString(THPVariableClass, name));
  if (!found || !Py_IS_TYPE(found.get(), &PyMethodDescr_Type)) {
    PyErr_Clear();
    return;
  }
  PyMethodDef& method = *reinterpret_cast<PyMethodDescrObject*>(found.get())->d_method;
  if (method.ml_flags == (METH_VARARGS | METH_KEYWORDS)) {
    torchs = reinterpret_cast<Constructor>(reinterpret_cast<void*>(add_pointer_patch(
        method.ml_meth,
        reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&of_value<torchs>)))));
  }
}

} // namespace

void patch_new_tensors() {
  patch_constructor<torchs_new>("new");
  patch_constructor<torchs_new_tensor>("new_tensor");
}

} // namespace torchlayers
