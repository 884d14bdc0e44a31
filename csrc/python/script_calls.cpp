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

// What was under the name __call__ of ScriptFunction and of ScriptMethod.
struct Calls {
  py::object of_function, of_method;
};

Calls& torchs_calls() {
  static auto* calls = new Calls(); // Python may be gone before it would be destroyed
  return *calls;
}

bool is_method(py::handle object) {
  return py::isinstance<torch::jit::Method>(object);
}

PyObject* torchs_call(py::handle self, const py::args& args, const py::kwargs& kwargs) {
  const Calls& calls = torchs_calls();
  const py::object& call = is_method(self) ? calls.of_method : calls.of_function;
  return call(self, *args, **kwargs).release().ptr();
}

// The function that a ScriptFunction or ScriptMethod stands for, and the module or object it is of.
struct Callee {
  torch::jit::Function& function;
  std::optional<c10::IValue> self;

  static Callee of(py::handle object) {
    if (is_method(object)) {
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

PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  const auto given = py::reinterpret_borrow<py::args>(args);
  const auto named = kwargs == nullptr ? py::kwargs() : py::reinterpret_borrow<py::kwargs>(kwargs);
  if (!any_layer() || torch::jit::tracer::isTracing() || any_overrides(given, named)) {
    return torchs_call(self, given, named);
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

PyMethodDef method = {
    "__call__",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
    METH_VARARGS | METH_KEYWORDS,
    nullptr};

} // namespace

// By the name __call__ and not by the slot: who patches that, as torch.testing does, calls what was
// there.
void stand_before_script_calls() {
  const auto stand_before = [](const char* name) {
    const auto type = py::module_::import("torch._C").attr(name);
    const py::object before = type.attr("__call__");
    type.attr("__call__") = py::reinterpret_steal<py::object>(
        PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
    return before;
  };
  torchs_calls() = {stand_before("ScriptFunction"), stand_before("ScriptMethod")};
}

} // namespace torchlayers
