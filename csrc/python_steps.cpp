#include "python_steps.h"

#include <torch/csrc/Exceptions.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace torchlayers {
namespace {

namespace py = pybind11;

// The name of the module that a function was written in: its __module__ is whatever
// functools.wraps copied.
std::string home_of(PyObject* function) {
  PyObject* name = PyDict_GetItemString(PyFunction_GET_GLOBALS(function), "__name__");
  return name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
}

bool is_torchs_own(const py::object& function) {
  if (PyCFunction_Check(function.ptr())) {
    return true;
  }
  if (!PyFunction_Check(function.ptr())) {
    return false;
  }
  const std::string home = home_of(function.ptr());
  if (home == "contextlib" && py::hasattr(function, "__wrapped__")) { // a context manager
    return is_torchs_own(function.attr("__wrapped__"));
  }
  return home.rfind("torch.", 0) == 0;
}

// A function as torch.func finds it at a call: by its name, among a module's.
class Step {
 public:
  Step(py::dict names, py::str name) : names_(std::move(names)), name_(std::move(name)) {}

  bool is_replaced() {
    PyObject* function = PyDict_GetItemWithError(names_.ptr(), name_.ptr());
    if (function != seen_.ptr()) {
      seen_ = py::reinterpret_borrow<py::object>(function);
      is_replaced_ = function != nullptr && !is_torchs_own(seen_);
    }
    return is_replaced_;
  }

 private:
  py::dict names_;
  py::str name_;
  py::object seen_;
  bool is_replaced_ = false;
};

std::vector<Step>& steps_of(Transform transform) {
  static auto* steps = new std::array<std::vector<Step>, kTransforms>(); // Python ends before this
  return (*steps)[static_cast<size_t>(transform)];
}

// The functions are (module's names, function's name).
void watch_steps(size_t transform, const std::vector<std::pair<py::dict, std::string>>& functions) {
  for (const auto& [names, name] : functions) {
    steps_of(static_cast<Transform>(transform))
        .emplace_back(
            names, py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name.c_str())));
  }
}

// replaced_steps(transform): None, or the indices of those replaced, in the order they were given.
PyObject* replaced_steps(PyObject*, PyObject* transform) {
  HANDLE_TH_ERRORS
  const auto which = static_cast<Transform>(PyLong_AsSize_t(transform));
  if (!has_replaced_steps(which)) {
    Py_RETURN_NONE;
  }
  py::list indices;
  auto& steps = steps_of(which);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].is_replaced()) {
      indices.append(i);
    }
  }
  return indices.release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace

bool has_replaced_steps(Transform transform) {
  bool any = false;
  for (Step& step : steps_of(transform)) {
    any |= step.is_replaced();
  }
  return any;
}

void bind_steps(py::module_& m) {
  m.def("watch_steps", &watch_steps);
  static PyMethodDef methods[] = {
      {"replaced_steps", &replaced_steps, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) {
    throw py::error_already_set();
  }
}

} // namespace torchlayers
