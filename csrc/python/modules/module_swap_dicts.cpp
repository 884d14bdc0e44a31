#include "python/modules/module_swap_dicts.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_set>

#include "core/device.h"

namespace torchlayers::modules {

namespace py = pybind11;

py::object borrowed(PyObject* object) {
  return py::reinterpret_borrow<py::object>(object);
}

PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) {
    throw py::error_already_set();
  }
  return name;
}

PyObject* item(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

PyObject* item_if_any(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr) {
    PyErr_Clear();
  }
  return value;
}

std::string text_of(PyObject* name) {
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace"));
  if (!bytes) {
    throw py::error_already_set();
  }
  return bytes;
}

namespace {

// The same as item(): checking the expected position takes a third of the time of a lookup.
PyObject* item_at(Py_ssize_t& place, PyObject* dict, PyObject* key) {
  PyObject *found = nullptr, *value = nullptr;
  Py_ssize_t at = place;
  if (PyDict_Next(dict, &at, &found, &value) != 0 && found == key) {
    return value;
  }
  at = 0;
  do {
    place = at;
    if (PyDict_Next(dict, &at, &found, &value) == 0) {
      place = 0;
      return item(dict, key);
    }
  } while (found != key);
  return value;
}

} // namespace

std::optional<Dicts> Dicts::of(PyObject* module, Places& places) {
  static const std::array<PyObject*, 3> names{
      interned("_modules"), interned("_parameters"), interned("_buffers")};
  auto own = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
  if (!own) {
    PyErr_Clear();
    return std::nullopt;
  }
  std::array<PyObject*, 3> found;
  for (size_t i = 0; i < names.size(); ++i) {
    found[i] = item_at(places[i], own.ptr(), names[i]);
    if (found[i] == nullptr || !PyDict_Check(found[i])) {
      return std::nullopt;
    }
  }
  return Dicts{own.ptr(), found[0], {found[1], found[2]}}; // the module holds them
}

void put_back(const Replacement& replaced) {
  const int failed =
      replaced.before
          ? PyDict_SetItem(replaced.dict.ptr(), replaced.key.ptr(), replaced.before.ptr())
          : PyDict_DelItem(replaced.dict.ptr(), replaced.key.ptr());
  if (failed != 0) {
    PyErr_Clear(); // the key is gone already
  }
}

std::vector<Running>& running() {
  static auto* calls = new std::vector<Running>;
  return *calls;
}

bool reaches(const Running& call, const AllDicts& dicts) {
  std::unordered_set<const void*> read;
  for (const Dicts& module : dicts) {
    read.insert(module.tensors.begin(), module.tensors.end());
    read.insert(module.own);
  }
  return std::any_of(
      call.replaced->begin(), call.replaced->end(), [&](const Replacement& replaced) {
        return read.count(replaced.dict.ptr()) != 0;
      });
}

Replacements put_in_now() {
  Replacements now;
  for (const Running& call : running()) {
    if (call.thread != std::this_thread::get_id()) {
      continue;
    }
    for (const Replacement& replaced : *call.replaced) {
      now.push_back({replaced.dict, replaced.key, {}});
      if (PyObject* value = PyDict_GetItem(replaced.dict.ptr(), replaced.key.ptr())) {
        now.back().before = py::reinterpret_borrow<py::object>(value);
      }
    }
  }
  return now;
}

PutInAgain::PutInAgain(const Replacements& given) {
  replaced_.reserve(given.size());
  for (const Replacement& each : given) {
    replaced_.push_back({each.dict, each.key, {}});
    if (PyObject* value = PyDict_GetItem(each.dict.ptr(), each.key.ptr())) {
      replaced_.back().before = py::reinterpret_borrow<py::object>(value);
    }
    put_back(each);
  }
}

PutInAgain::~PutInAgain() {
  std::for_each(replaced_.rbegin(), replaced_.rend(), put_back);
}

PyObject* original(PyObject* dict, PyObject* key, PyObject* now) {
  for (const Running& call : running()) {
    if (call.thread != std::this_thread::get_id()) {
      continue;
    }
    for (const Replacement& replaced : *call.replaced) {
      if (replaced.dict.ptr() == dict && replaced.key.ptr() == key && replaced.before) {
        return replaced.before.ptr();
      }
    }
  }
  return now;
}

const FlatWeights::Names& FlatWeights::names() {
  static const Names names;
  return names;
}

void FlatWeights::list_anew(const Dicts& dicts) {
  PyObject* weights = item(dicts.own, names().weights);
  if (weights == nullptr || !PyList_CheckExact(weights)) {
    return;
  }
  py::list tensors, references;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(weights); ++i) {
    PyObject* tensor = item(dicts.tensors[0], PyList_GET_ITEM(weights, i));
    if (tensor == nullptr || !THPVariable_Check(tensor) ||
        weights_share_memory(THPVariable_Unpack(tensor).device())) {
      return;
    }
    tensors.append(borrowed(tensor));
    references.append(py::weakref(tensor));
  }
  PyDict_SetItem(dicts.own, names().list, tensors.ptr());
  PyDict_SetItem(dicts.own, names().references, references.ptr());
}

} // namespace torchlayers::modules
