// Calls of TorchScript functions and methods from Python, under layers of ours.
// NOTE [TorchScript under layers].
#include "graph/script_calls.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>

#include "core/stack.h"
#include "python/bindings.h"
#include "python/function_modes.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// The original __call__ of ScriptFunction and of ScriptMethod.
PyObject* call_of_functions = nullptr;
PyObject* call_of_methods = nullptr;

PyObject* call_torchs(PyObject* torchs, PyObject* self, PyObject* args, PyObject* kwargs) {
  const auto before = py::reinterpret_steal<py::object>(PyTuple_Pack(1, self));
  const auto all = py::reinterpret_steal<py::object>(PySequence_Concat(before.ptr(), args));
  return all ? PyObject_Call(torchs, all.ptr(), kwargs) : nullptr;
}

// The function behind a ScriptFunction or ScriptMethod, and the module or object that it belongs
// to.
struct Callee {
  torch::jit::Function& function;
  std::optional<c10::IValue> self;

  static Callee of(py::handle object) {
    if (py::isinstance<torch::jit::Method>(object)) {
      auto& method = object.cast<torch::jit::Method&>();
      return {method.function(), method.owner()._ivalue()};
    }
    return {*object.cast<torch::jit::StrongFunctionPtr&>().function_, std::nullopt};
  }
};

bool overrides_in(py::handle argument) {
  if (!PyList_Check(argument.ptr()) && !PyTuple_Check(argument.ptr())) {
    return overrides_functions(argument);
  }
  const auto members = py::reinterpret_borrow<py::sequence>(argument);
  return std::any_of(members.begin(), members.end(), &overrides_functions);
}

bool any_overrides(const py::args& args, const py::kwargs& kwargs) {
  return std::any_of(args.begin(), args.end(), &overrides_in) ||
         std::any_of(kwargs.begin(), kwargs.end(), [](const auto& each) {
           return overrides_in(each.second);
         });
}

template <PyObject*& torchs>
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!any_layer() || torch::jit::tracer::isTracing()) {
    return call_torchs(torchs, self, args, kwargs);
  }
  HANDLE_TH_ERRORS
  const auto given = py::reinterpret_borrow<py::args>(args);
  const auto named = kwargs == nullptr ? py::kwargs() : py::reinterpret_borrow<py::kwargs>(kwargs);
  if (any_overrides(given, named)) {
    return call_torchs(torchs, self, args, kwargs);
  }
  auto [function, owner] = Callee::of(self);
  auto stack = torch::jit::createStackForSchema(
      function.getSchema(), torch::jit::tuple_slice(given), named, owner);
  {
    const py::gil_scoped_release no_gil;
    graph::run_operators_of(function, stack);
  }
  return torch::jit::toPyObject(std::move(stack.back())).release().ptr();
  END_HANDLE_TH_ERRORS
}

template <PyObject*& torchs>
void stand_before(const char* name) {
  static PyMethodDef method = {
      "__call__",
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call<torchs>)),
      METH_VARARGS | METH_KEYWORDS,
      nullptr};
  const auto type = py::module_::import("torch._C").attr(name);
  torchs = py::object(type.attr("__call__")).release().ptr();
  type.attr("__call__") = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
}

} // namespace

// Replaces the attribute __call__, not the slot: code that patches the attribute, as torch.testing
// does, calls the previous value.
void stand_before_script_calls() {
  stand_before<call_of_functions>("ScriptFunction");
  stand_before<call_of_methods>("ScriptMethod");
}

} // namespace torchlayers
