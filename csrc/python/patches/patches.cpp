#include "python/patches/patches.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/callbacks.h"
#include "core/patches.h"

namespace torchlayers {
namespace {

namespace py = pybind11;

// A function of torch, and the code that it has meanwhile. Python's setter would take a hundred
// instructions to do the same: it also tells those who watch functions.
struct CodePatch {
  PyFunctionObject* function;
  PyObject* torchs;
  PyObject* ours;

  void set(bool is_in) const {
    if (function->func_code == (is_in ? torchs : ours)) {
      function->func_code = is_in ? ours : torchs; // all three live as long as the process
#if PY_VERSION_HEX >= 0x030B0000
      function->func_version = 0; // for the interpreter's caches of calls
#endif
    }
  }
};

// All of it is read and written with the GIL.
struct Patches {
  std::vector<PointerPatch> pointers;
  std::vector<CodePatch> codes;
  std::vector<Switch> switches;
  int64_t holders = 0; // Patched that are alive, on all threads

  static Patches& instance() {
    static auto* patches = new Patches(); // never freed
    return *patches;
  }
  void set(bool is_in) const {
    for (const PointerPatch& pointer : pointers) {
      pointer.set(is_in);
    }
    for (const CodePatch& code : codes) {
      code.set(is_in);
    }
    for (const Switch& set : switches) {
      set(is_in);
    }
  }
};

thread_local int64_t holders_here = 0;

// Modules that code is waiting for, by name. NOTE [Patches].
struct Imports {
  py::dict pending;
  py::function run_ready;

  // Before anything else, because it runs Python.
  void look() const {
    PyObject *name = nullptr, *actions = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(pending.ptr(), &at, &name, &actions) != 0;) {
      if (PyDict_GetItem(PyImport_GetModuleDict(), name) != nullptr) {
        run_ready();
        return;
      }
    }
  }
};

Imports* imports = nullptr;

// The finder is first on sys.meta_path while a module is waited for.
void put_finder(PyObject* finders, PyObject* finder, bool is_in) {
  if (is_in) {
    PyList_Insert(finders, 0, finder);
    return;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(finders); ++i) {
    if (PyList_GET_ITEM(finders, i) == finder) {
      PyList_SetSlice(finders, i, i + 1, nullptr);
      return;
    }
  }
}

void watch_imports(py::dict pending, py::function run_ready, const py::object& finder) {
  imports = new Imports{std::move(pending), std::move(run_ready)};
  PyObject* finders = py::list(py::module_::import("sys").attr("meta_path")).release().ptr();
  add_patch([finders, place = finder.inc_ref().ptr(), is_there = false](bool is_in) mutable {
    const bool shall_be = is_in && PyDict_GET_SIZE(imports->pending.ptr()) != 0;
    if (shall_be != is_there) {
      put_finder(finders, place, shall_be);
      is_there = shall_be;
    }
  });
}

std::vector<std::pair<py::object, py::object>>& added_attributes() {
  static auto* added = [] {
    auto* all = new std::vector<std::pair<py::object, py::object>>(); // class, name
    add_patch([all](bool is_in) {
      if (all->empty()) {
        return;
      }
      const py::error_scope error; // a layer may be left with one
      for (const auto& [type, name] : *all) {
        if (!is_in && PyObject_DelAttr(type.ptr(), name.ptr()) != 0) {
          PyErr_Clear();
        }
      }
      all->clear();
    });
    return all;
  }();
  return *added;
}

void put_in() {
  if (imports != nullptr && PyDict_GET_SIZE(imports->pending.ptr()) != 0) {
    imports->look();
  }
  ++holders_here;
  if (Patches::instance().holders++ == 0) {
    Patches::instance().set(true);
  }
}

void take_out() {
  --holders_here;
  if (--Patches::instance().holders == 0) {
    Patches::instance().set(false);
  }
}

// A thread that ends with an open layer leaves it without the GIL.
void take_out_at_any_time() {
  if (PyGILState_Check() == 1) {
    take_out();
  } else if (Py_IsInitialized() != 0) {
    const py::gil_scoped_acquire gil;
    take_out();
  }
}

void add_code_patch(const py::function& function, const py::object& code) {
  auto* of = reinterpret_cast<PyFunctionObject*>(function.inc_ref().ptr());
  const CodePatch patch{
      of, py::object(function.attr("__code__")).release().ptr(), code.inc_ref().ptr()};
  Patches::instance().codes.push_back(patch);
  if (Patches::instance().holders > 0) {
    patch.set(true);
  }
}

void add_attributes(const py::object& type, const py::dict& attributes) {
  for (const auto& [name, value] : attributes) {
    if (!py::hasattr(type, name)) {
      type.attr(name) = value;
      added_attributes().emplace_back(type, py::reinterpret_borrow<py::object>(name));
    }
  }
}

} // namespace

void add_patch(Switch set) {
  Patches& patches = Patches::instance();
  patches.switches.push_back(std::move(set));
  if (patches.holders > 0) {
    patches.switches.back()(true);
  }
}

void add_pointer_patch(const PointerPatch& patch) {
  Patches::instance().pointers.push_back(patch);
}

bool any_attribute_added() {
  return !added_attributes().empty();
}

void bind_patches(py::module_& m) {
  callbacks.put_patches_in = &put_in;
  callbacks.take_patches_out = &take_out_at_any_time;
  m.def("add_code_patch", &add_code_patch);
  m.def("add_attributes", &add_attributes);
  m.def("watch_imports", &watch_imports);
  m.def("forget_other_threads", [] {
    Patches& patches = Patches::instance();
    const bool were_in = std::exchange(patches.holders, std::max<int64_t>(holders_here, 0)) > 0;
    if (were_in && patches.holders == 0) {
      patches.set(false);
    }
  });
}

} // namespace torchlayers
