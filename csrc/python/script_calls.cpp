// Calls of TorchScript functions and methods from Python, under layers of ours.
// NOTE [TorchScript under layers].
#include "graph/run/script_calls.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>

#include "core/stack.h"
#include "python/bindings.h"
#include "python/function_modes.h"
#include "python/patches/patches.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// PyCFunctionFastWithKeywords, which Python 3.13 made public.
using CallWithVectors = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

// torch's functions behind __call__ of ScriptFunction and of ScriptMethod, which Python calls with
// pybind11's record of the method: with vectors or, in older versions, with a tuple and a dict.
struct Torchs {
  CallWithVectors with_vectors = nullptr;
  PyCFunctionWithKeywords with_tuple = nullptr;
};

Torchs of_functions;
Torchs of_methods;

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

bool runs_in_layers() {
  return any_layer() && !torch::jit::tracer::isTracing();
}

// `all` is the function or method, and its arguments. Null without an error if torch has to handle
// the call.
PyObject* run_operators(const py::tuple& all, const py::kwargs& kwargs) {
  HANDLE_TH_ERRORS
  const py::args args = py::reinterpret_steal<py::args>(
      PyTuple_GetSlice(all.ptr(), 1, static_cast<Py_ssize_t>(all.size())));
  if (any_overrides(args, kwargs)) {
    return nullptr;
  }
  auto [function, owner] = Callee::of(all[0]);
  auto stack = torch::jit::createStackForSchema(
      function.getSchema(), torch::jit::tuple_slice(args), kwargs, owner);
  {
    const py::gil_scoped_release no_gil;
    graph::run_operators_of(function, stack);
  }
  return torch::jit::toPyObject(std::move(stack.back())).release().ptr();
  END_HANDLE_TH_ERRORS
}

template <Torchs& torchs>
PyObject* call_with_tuple(PyObject* record, PyObject* all, PyObject* kwargs) {
  if (runs_in_layers()) {
    PyObject* result = run_operators(
        py::reinterpret_borrow<py::tuple>(all),
        kwargs == nullptr ? py::kwargs() : py::reinterpret_borrow<py::kwargs>(kwargs));
    if (result != nullptr || PyErr_Occurred() != nullptr) {
      return result;
    }
  }
  return torchs.with_tuple(record, all, kwargs);
}

template <Torchs& torchs>
PyObject* call_with_vectors(
    PyObject* record, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (runs_in_layers()) {
    py::tuple all(count);
    for (Py_ssize_t i = 0; i < count; ++i) {
      all[i] = py::handle(args[i]);
    }
    py::kwargs kwargs;
    for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_GET_SIZE(names); ++i) {
      kwargs[py::handle(PyTuple_GET_ITEM(names, i))] = py::handle(args[count + i]);
    }
    PyObject* result = run_operators(all, kwargs);
    if (result != nullptr || PyErr_Occurred() != nullptr) {
      return result;
    }
  }
  return torchs.with_vectors(record, args, count, names);
}

template <class Function>
PyCFunction as_pointer(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

template <Torchs& torchs>
void patch_call(const char* name) {
  const py::object method = py::module_::import("torch._C").attr(name).attr("__dict__")["__call__"];
  if (!PyInstanceMethod_Check(method.ptr())) {
    return;
  }
  PyObject* function = PyInstanceMethod_GET_FUNCTION(method.ptr());
  if (!PyCFunction_Check(function)) {
    return;
  }
  PyMethodDef& definition = *reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (definition.ml_flags == (METH_FASTCALL | METH_KEYWORDS)) {
    torchs.with_vectors = reinterpret_cast<CallWithVectors>(reinterpret_cast<void (*)()>(
        add_pointer_patch(definition.ml_meth, as_pointer(&call_with_vectors<torchs>))));
  } else if (definition.ml_flags == (METH_VARARGS | METH_KEYWORDS)) {
    torchs.with_tuple = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(
        add_pointer_patch(definition.ml_meth, as_pointer(&call_with_tuple<torchs>))));
  }
}

} // namespace

// Replaces the function that the attribute __call__ holds, and neither the attribute nor the slot:
// code that patches the attribute, as torch.testing does, calls the previous value.
void patch_script_calls() {
  patch_call<of_functions>("ScriptFunction");
  patch_call<of_methods>("ScriptMethod");
}

} // namespace torchlayers
