#include "python/modules/module_forward.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <array>

#include "python/modules/module_swap_dicts.h"
#include "python/patches/patches.h"

namespace torchlayers::modules {

namespace py = pybind11;

namespace {

// The parts of nn.Module's path from a call to forward, as torch defines them.
struct OwnCall {
  PyObject *call = interned("__call__"), *call_impl = interned("_call_impl"),
           *compiled = interned("_compiled_call_impl"), *find = interned("__getattribute__"),
           *forward = interned("forward"), *iterate = interned("__iter__");
  std::array<PyObject*, 4> hooks{
      interned("_backward_hooks"),
      interned("_backward_pre_hooks"),
      interned("_forward_hooks"),
      interned("_forward_pre_hooks")};
  std::array<PyObject*, 4> hooks_of_all; // dicts, of all modules
  // Functions; nullptr if a package has replaced one.
  PyObject *outer, *inner, *get, *sequential_forward, *sequential_iterate;

  OwnCall() {
    const auto file = py::module_::import("torch.nn.modules.module");
    for (size_t i = 0; i < hooks.size(); ++i) {
      const auto name = "_global" + py::cast<std::string>(hooks[i]);
      hooks_of_all[i] = file.attr(name.c_str()).cast<py::dict>().release().ptr();
    }
    const auto module = file.attr("Module");
    outer = as_written(module, "_wrapped_call_impl");
    inner = as_written(module, "_call_impl");
    get = as_written(module, "__getattr__");
    const auto sequential = py::module_::import("torch.nn").attr("Sequential");
    sequential_forward = as_written(sequential, "forward");
    sequential_iterate = as_written(sequential, "__iter__");
  }

  static const OwnCall& torchs() {
    static const auto* own = new OwnCall;
    return *own;
  }

  bool only_calls_forward(PyObject* module, PyObject* own) const {
    PyTypeObject* type = Py_TYPE(module);
    if (!is(outer, type, call) || !is(inner, type, call_impl) || !is(Py_None, type, compiled) ||
        !is(_PyType_Lookup(&PyBaseObject_Type, find), type, find) ||
        item_if_any(own, compiled) != nullptr || item_if_any(own, call_impl) != nullptr) {
      return false;
    }
    for (PyObject* dict : hooks_of_all) {
      if (PyDict_GET_SIZE(dict) != 0) {
        return false;
      }
    }
    for (PyObject* name : hooks) {
      PyObject* dict = item_if_any(own, name);
      if (dict == nullptr || !PyDict_Check(dict) || PyDict_GET_SIZE(dict) != 0) {
        return false;
      }
    }
    return true;
  }

  // Whether the module's forward just calls one child after the other.
  bool is_sequential(PyObject* module, PyObject* own) const {
    PyTypeObject* type = Py_TYPE(module);
    return is(sequential_forward, type, forward) && is(sequential_iterate, type, iterate) &&
           item_if_any(own, forward) == nullptr;
  }

 private:
  static bool is(PyObject* expected, PyTypeObject* type, PyObject* name) {
    return expected != nullptr && _PyType_Lookup(type, name) == expected;
  }

  static PyObject* as_written(const py::object& type, const char* name) {
    const py::object function = type.attr(name);
    const auto written_in =
        py::module_::import(type.attr("__module__").cast<std::string>().c_str());
    // A function that wraps another takes on its name, but not its code.
    const py::object code = py::getattr(function, "__code__", py::none());
    const bool is_torchs = !code.is_none() &&
                           code.attr("co_filename").equal(written_in.attr("__file__")) &&
                           code.attr("co_name").cast<std::string>() == name;
    return is_torchs ? function.ptr() : nullptr;
  }
};

// A profiler identifies a module by the frame of its call.
bool is_profiled() {
  const PyThreadState* thread = PyThreadState_Get();
  return thread->c_profilefunc != nullptr || thread->c_tracefunc != nullptr;
}

py::object dict_of(PyObject* module) {
  auto own = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
  if (!own) {
    PyErr_Clear();
  }
  return own;
}

// module(input)
PyObject* call_with(PyObject* module, PyObject* input);

PyObject* call_children(PyObject* sequential, PyObject* own, PyObject* input) {
  static PyObject *modules = interned("_modules"), *values = interned("values");
  PyObject* children = item_if_any(own, modules);
  if (children == nullptr || !PyDict_CheckExact(children)) {
    return PyObject_CallMethodOneArg(sequential, OwnCall::torchs().forward, input);
  }
  const auto view = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(children, values));
  const auto iterator = py::reinterpret_steal<py::object>(PyObject_GetIter(view.ptr()));
  auto value = borrowed(input);
  while (PyObject* child = PyIter_Next(iterator.ptr())) {
    const auto held = py::reinterpret_steal<py::object>(child);
    value = py::reinterpret_steal<py::object>(call_with(child, value.ptr()));
    if (!value) {
      return nullptr;
    }
  }
  return PyErr_Occurred() != nullptr ? nullptr : value.release().ptr();
}

// The same, for a module whose call only calls its forward.
PyObject* forward_with(PyObject* module, PyObject* own, PyObject* input) {
  const OwnCall& torchs = OwnCall::torchs();
  if (!torchs.is_sequential(module, own)) {
    return PyObject_CallMethodOneArg(module, torchs.forward, input);
  }
  if (Py_EnterRecursiveCall(" in a tree of nn.Sequential") != 0) {
    return nullptr;
  }
  PyObject* result = call_children(module, own, input);
  Py_LeaveRecursiveCall();
  return result;
}

PyObject* call_with(PyObject* module, PyObject* input) {
  const py::object own = dict_of(module);
  return own && OwnCall::torchs().only_calls_forward(module, own.ptr())
             ? forward_with(module, own.ptr(), input)
             : PyObject_CallOneArg(module, input);
}

// The parameter, buffer or child of this name, which __getattr__ returns, as a new reference;
// nullptr if there is none.
PyObject* found_in_dicts(PyObject* module, PyObject* name) {
  static const std::array<PyObject*, 3> dicts{
      interned("_parameters"), interned("_buffers"), interned("_modules")};
  const py::object own = dict_of(module);
  if (!own || !PyDict_CheckExact(own.ptr())) {
    return nullptr;
  }
  for (PyObject* each : dicts) {
    PyObject* dict = item_if_any(own.ptr(), each);
    if (dict == nullptr || !PyDict_CheckExact(dict)) {
      return nullptr;
    }
    if (PyObject* found = item_if_any(dict, name)) {
      Py_INCREF(found);
      return found;
    }
  }
  return nullptr;
}

vectorcallfunc call_in_python = nullptr;
vectorcallfunc get_in_python = nullptr;

bool may_shorten() {
  return !running().empty() && !is_profiled();
}

// nn.Module.__call__(module, ...)
PyObject* call_in_c(PyObject* function, PyObject* const* args, size_t flags, PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count > 0 && may_shorten()) {
    const py::object own = dict_of(args[0]);
    if (own && OwnCall::torchs().only_calls_forward(args[0], own.ptr())) {
      return count == 2 && names == nullptr
                 ? forward_with(args[0], own.ptr(), args[1])
                 : PyObject_VectorcallMethod(
                       OwnCall::torchs().forward, args, static_cast<size_t>(count), names);
    }
  }
  return call_in_python(function, args, flags, names);
}

// nn.Module.__getattr__(module, name)
PyObject* get_in_c(PyObject* function, PyObject* const* args, size_t flags, PyObject* names) {
  if (PyVectorcall_NARGS(flags) == 2 && names == nullptr && PyUnicode_CheckExact(args[1]) &&
      may_shorten()) {
    if (PyObject* found = found_in_dicts(args[0], args[1])) {
      return found;
    }
  }
  return get_in_python(function, args, flags, names);
}

// Has C call `in_c` where it would run the function's code. Python's own calls of it by name run
// the code.
void shorten(PyObject* function, vectorcallfunc in_c, vectorcallfunc& in_python) {
  if (function == nullptr || !PyFunction_Check(function)) {
    return;
  }
  auto* of = reinterpret_cast<PyFunctionObject*>(function);
  in_python = of->vectorcall;
  const vectorcallfunc torchs = in_python;
  add_patch([=](bool is_in) {
    if (of->vectorcall == (is_in ? torchs : in_c)) {
#if PY_VERSION_HEX >= 0x030C0000
      PyFunction_SetVectorcall(of, is_in ? in_c : torchs);
#else
      of->vectorcall = is_in ? in_c : torchs;
#endif
    }
  });
}

} // namespace

void patch_calls() {
  shorten(OwnCall::torchs().outer, &call_in_c, call_in_python);
  shorten(OwnCall::torchs().get, &get_in_c, get_in_python);
}

PyObject* call_of(PyObject* module, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  if (is_profiled()) {
    return PyObject_Call(module, args, kwargs);
  }
  const bool is_one =
      PyTuple_GET_SIZE(args) == 1 && (kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0);
  if (is_one) {
    return call_with(module, PyTuple_GET_ITEM(args, 0));
  }
  const OwnCall& torchs = OwnCall::torchs();
  const py::object own = dict_of(module);
  if (!own || !torchs.only_calls_forward(module, own.ptr())) {
    return PyObject_Call(module, args, kwargs);
  }
  const auto forward = py::reinterpret_steal<py::object>(PyObject_GetAttr(module, torchs.forward));
  return forward ? PyObject_Call(forward.ptr(), args, kwargs) : nullptr;
  END_HANDLE_TH_ERRORS
}

} // namespace torchlayers::modules
