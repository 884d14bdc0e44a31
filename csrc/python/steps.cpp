#include "python/steps.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>
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

// A module's names, which may have changed since they were last looked at: to look them all up
// at each call would take a tenth of its time.
class ModuleNames {
 public:
  explicit ModuleNames(py::dict names) : names_(std::move(names)) {
    watch();
  }
  PyObject* dict() const {
    return names_.ptr();
  }

#if PY_VERSION_HEX < 0x030C0000
  bool is_changed() const {
    return version() != seen_;
  }
  void set_changed(bool changed) {
    seen_ = changed ? 0 : version(); // Python gives no dict the version 0
  }

 private:
  void watch() {}
  uint64_t version() const {
    return reinterpret_cast<PyDictObject*>(names_.ptr())->ma_version_tag;
  }

  uint64_t seen_ = 0;
#else
  bool is_changed() const {
    return is_changed_ || !is_watched_;
  }
  void set_changed(bool changed) {
    is_changed_ = changed;
  }

 private:
  void watch();

  bool is_changed_ = true;
  bool is_watched_ = false;
#endif
  py::dict names_;
};

// A function as torch.func finds it at a call: by its name.
class TorchStep {
 public:
  TorchStep(PyObject* names, py::str name) : names_(names), name_(std::move(name)) {}

  void look() {
    PyObject* function = PyDict_GetItemWithError(names_, name_.ptr());
    if (function != seen_.ptr()) {
      seen_ = py::reinterpret_borrow<py::object>(function);
      is_replaced_ = function != nullptr && !is_torchs_own(seen_);
    }
  }
  bool is_replaced() const {
    return is_replaced_;
  }

 private:
  PyObject* names_;
  py::str name_;
  py::object seen_;
  bool is_replaced_ = false;
};

class TorchSteps {
 public:
  static TorchSteps& instance() {
    static auto* steps = new TorchSteps(); // Python ends before this
    return *steps;
  }

  void add(Transform transform, const py::dict& names, const std::string& name) {
    if (names_of(names.ptr()) == nullptr) {
      names_.emplace_back(names);
    }
    of_[static_cast<size_t>(transform)].emplace_back(
        names.ptr(), py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name.c_str())));
    names_of(names.ptr())->set_changed(true);
  }

  bool any(Transform transform) {
    if (C10_UNLIKELY(std::any_of(names_.begin(), names_.end(), [](const ModuleNames& names) {
          return names.is_changed();
        }))) {
      look();
    }
    return any_[static_cast<size_t>(transform)];
  }

  // The indices of those replaced, in the order in which they were added.
  py::list replaced(Transform transform) const {
    const auto& steps = of_[static_cast<size_t>(transform)];
    py::list indices;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].is_replaced()) {
        indices.append(i);
      }
    }
    return indices;
  }

  ModuleNames* names_of(PyObject* dict) {
    const auto found = std::find_if(names_.begin(), names_.end(), [&](const ModuleNames& names) {
      return names.dict() == dict;
    });
    return found == names_.end() ? nullptr : &*found;
  }

 private:
  void look() {
    for (ModuleNames& names : names_) {
      names.set_changed(false);
    }
    for (size_t i = 0; i < kTransforms; ++i) {
      any_[i] = false;
      for (TorchStep& step : of_[i]) {
        step.look();
        any_[i] |= step.is_replaced();
      }
    }
  }

  std::vector<ModuleNames> names_;
  std::array<std::vector<TorchStep>, kTransforms> of_;
  std::array<bool, kTransforms> any_{};
};

#if PY_VERSION_HEX >= 0x030C0000
int note_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  if (ModuleNames* names = TorchSteps::instance().names_of(dict)) {
    names->set_changed(true);
  }
  return 0;
}

void ModuleNames::watch() {
  static const int watcher = PyDict_AddWatcher(&note_change);
  is_watched_ = watcher >= 0 && PyDict_Watch(watcher, names_.ptr()) == 0;
  PyErr_Clear(); // there are only so many watchers: then the names are looked up at each call
}
#endif

// The functions are (module's names, function's name).
void watch_steps(size_t transform, const std::vector<std::pair<py::dict, std::string>>& functions) {
  for (const auto& [names, name] : functions) {
    TorchSteps::instance().add(static_cast<Transform>(transform), names, name);
  }
}

// replaced_steps(transform): None, or the indices of those replaced.
PyObject* replaced_steps(PyObject*, PyObject* transform) {
  HANDLE_TH_ERRORS
  const auto which = static_cast<Transform>(PyLong_AsSize_t(transform));
  if (!has_replaced_steps(which)) {
    Py_RETURN_NONE;
  }
  return TorchSteps::instance().replaced(which).release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace

bool has_replaced_steps(Transform transform) {
  return TorchSteps::instance().any(transform);
}

WritesNoStep::WritesNoStep(const py::dict& names) : names_(names) {
  const ModuleNames* watched = TorchSteps::instance().names_of(names.ptr());
  was_changed_ = watched == nullptr || watched->is_changed();
}

WritesNoStep::~WritesNoStep() {
  if (!was_changed_) {
    TorchSteps::instance().names_of(names_.ptr())->set_changed(false);
  }
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
