#include "python/patches/requires_grad.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "core/keys.h"
#include "layers/transforms.h"
#include "python/function_modes.h"
#include "python/patches/patches.h"
#include "python/tree.h"
#include "values/value_inside.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

PyMethodDef requires_grad_method{};    // torch's, with our function in it
PyGetSetDef requires_grad_attribute{}; // likewise
PyCFunctionWithKeywords torchs_requires_grad_ = nullptr;
getter torchs_getter = nullptr;
setter torchs_setter = nullptr;

// Whether torch would call the class's __torch_function__.
bool asks_its_class(PyObject* self) {
  if (THPVariable_CheckExact(self)) {
    return false;
  }
  static auto* disabled = new py::object(imported("torch._C", "_disabled_torch_function_impl"));
  const THPObjectPtr found(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(self)), "__torch_function__"));
  PyErr_Clear();
  return found.get() != disabled->ptr();
}

bool is_inside_ours(PyObject* self) {
  return C10_UNLIKELY(thread_keys().included().has(kFront)) && !any_enabled_function_mode() &&
         !asks_its_class(self);
}

PyObject* call_handler(PyObject* self, const py::tuple& args, const py::dict& options) {
  static auto* handler =
      new py::object(imported("torchlayers.transforms.local_gradients", "set_requires_grad"));
  return (*handler)(py::handle(self), *args, **options).release().ptr();
}

PyObject* require_grad(PyObject* self, PyObject* args, PyObject* options) {
  if (!is_inside_ours(self)) {
    return torchs_requires_grad_(self, args, options);
  }
  HANDLE_TH_ERRORS
  return call_handler(
      self,
      py::reinterpret_borrow<py::tuple>(args),
      options != nullptr ? py::reinterpret_borrow<py::dict>(options) : py::dict());
  END_HANDLE_TH_ERRORS
}

// The innermost tensor, whose own flag tells whether it requires grad.
at::Tensor marked_tensor(const at::Tensor& tensor) {
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    return marked_tensor(batched->value());
  }
  if (at::functionalization::impl::isFunctionalTensor(tensor)) {
    at::functionalization::impl::sync(tensor);
    return marked_tensor(at::functionalization::impl::from_functional_tensor(tensor));
  }
  return tensor;
}

PyObject* get_requires_grad(PyObject* self, void* closure) {
  if (!is_inside_ours(self)) {
    return torchs_getter(self, closure);
  }
  HANDLE_TH_ERRORS
  const at::Tensor tensor = shown(THPVariable_Unpack(self));
  // torch.zeros_like(x, requires_grad=True) sets the flag of the batched tensor itself.
  return PyBool_FromLong(tensor.requires_grad() || marked_tensor(tensor).requires_grad());
  END_HANDLE_TH_ERRORS
}

int set_requires_grad(PyObject* self, PyObject* value, void* closure) {
  if (value == nullptr || !PyBool_Check(value) || !is_inside_ours(self)) {
    return torchs_setter(self, value, closure);
  }
  HANDLE_TH_ERRORS
  Py_DECREF(call_handler(self, py::make_tuple(py::handle(value)), py::dict()));
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

} // namespace

void patch_requires_grad() {
  THPObjectPtr found(PyObject_GetAttrString(THPVariableClass, "requires_grad_"));
  THPObjectPtr property(PyObject_GetAttrString(THPVariableClass, "requires_grad"));
  if (!found || !property || !Py_IS_TYPE(found.get(), &PyMethodDescr_Type) ||
      !Py_IS_TYPE(property.get(), &PyGetSetDescr_Type)) {
    throw py::import_error(
        "torchlayers: this version of torch implements requires_grad in an unknown way");
  }
  // The descriptors live as long as the class.
  auto* of_method = reinterpret_cast<PyMethodDescrObject*>(found.release());
  torchs_requires_grad_ = reinterpret_cast<PyCFunctionWithKeywords>(
      reinterpret_cast<void (*)()>(of_method->d_method->ml_meth));
  requires_grad_method = *of_method->d_method;
  requires_grad_method.ml_meth =
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&require_grad));
  add_pointer_patch(of_method->d_method, &requires_grad_method);
  auto* of_attribute = reinterpret_cast<PyGetSetDescrObject*>(property.release());
  torchs_getter = of_attribute->d_getset->get;
  torchs_setter = of_attribute->d_getset->set;
  requires_grad_attribute = *of_attribute->d_getset;
  requires_grad_attribute.get = &get_requires_grad;
  requires_grad_attribute.set = &set_requires_grad;
  add_pointer_patch(of_attribute->d_getset, &requires_grad_attribute);
}

void bind_requires_grad(py::module_& m) {
  // torch's own setter, without its check for active transforms.
  m.def("set_requires_grad", torch::wrap_pybind_function([](const at::Tensor& tensor, bool value) {
          tensor.set_requires_grad(value);
        }));
  // Replaces the value inside a batched tensor by another one of the same size.
  m.def("replace_batch", [](const at::Tensor& tensor, const at::Tensor& value) {
    value_inside(*at::functorch::maybeGetBatchedImpl(tensor)) = value;
  });
}

} // namespace torchlayers
