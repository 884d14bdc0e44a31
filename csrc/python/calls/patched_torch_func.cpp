#include "python/calls/patched_torch_func.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/tree.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// A module's namespace, which may have changed since it was last inspected: looking up all names at
// each call would take a tenth of its time.
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
    seen_ = changed ? 0 : version(); // no dict has version 0
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

class WatchedModules {
 public:
  static WatchedModules& instance() {
    static auto* modules = new WatchedModules(); // never freed
    return *modules;
  }

  void add(const py::dict& names) {
    modules_.emplace_back(names);
    modules_.back().set_changed(true);
  }

  bool any_step_replaced(Transform transform) {
    const auto is_changed = [](const ModuleNames& names) { return names.is_changed(); };
    if (C10_UNLIKELY(std::any_of(modules_.begin(), modules_.end(), is_changed))) {
      for (ModuleNames& names : modules_) {
        names.set_changed(false);
      }
      replaced_ =
          imported("torchlayers.transforms.patched_torch_func", "patched_bits")().cast<uint64_t>();
    }
    return (replaced_ >> static_cast<size_t>(transform) & 1) != 0;
  }

  ModuleNames* names_of(PyObject* dict) {
    const auto found = std::find_if(
        modules_.begin(), modules_.end(), [&](const auto& names) { return names.dict() == dict; });
    return found == modules_.end() ? nullptr : &*found;
  }

 private:
  std::vector<ModuleNames> modules_;
  uint64_t replaced_ = 0; // one bit for each transform with a replaced step
};

#if PY_VERSION_HEX >= 0x030C0000
int note_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  if (ModuleNames* names = WatchedModules::instance().names_of(dict)) {
    names->set_changed(true);
  }
  return 0;
}

void ModuleNames::watch() {
  static const int watcher = PyDict_AddWatcher(&note_change);
  is_watched_ = watcher >= 0 && PyDict_Watch(watcher, names_.ptr()) == 0;
  PyErr_Clear(); // out of watchers: then the names are looked up at each call
}
#endif

} // namespace

Replaced::Replaced(Transform transform) {
  if (C10_UNLIKELY(WatchedModules::instance().any_step_replaced(transform))) {
    steps_ = imported("torchlayers.transforms.patched_torch_func", "patched_steps")(
        static_cast<size_t>(transform));
  }
}

py::object Replaced::operator[](const char* step) const {
  if (C10_LIKELY(!steps_)) {
    return {};
  }
  return py::reinterpret_borrow<py::object>(PyDict_GetItemString(steps_.ptr(), step));
}

WritesNoStep::WritesNoStep(const py::dict& names) : names_(names) {
  const ModuleNames* watched = WatchedModules::instance().names_of(names.ptr());
  was_changed_ = watched == nullptr || watched->is_changed();
}

WritesNoStep::~WritesNoStep() {
  if (!was_changed_) {
    WatchedModules::instance().names_of(names_.ptr())->set_changed(false);
  }
}

void bind_steps(py::module_& m) {
  m.def("watch_steps", [](const std::vector<py::dict>& modules) {
    for (const auto& names : modules) {
      WatchedModules::instance().add(names);
    }
  });
  m.def("any_step_replaced", [](size_t transform) {
    return WatchedModules::instance().any_step_replaced(static_cast<Transform>(transform));
  });
}

} // namespace torchlayers
