#include "python/compiled/guards.h"

#include <torch/csrc/Exceptions.h>

#include <string>
#include <unordered_map>

#include "python/compiled/signature.h"

namespace torchlayers {

namespace py = pybind11;

bool Expected::holds(PyObject* now) const {
  if (how == How::Any) {
    return now != nullptr;
  }
  return now == value.ptr() ||
         (how == How::Equal && now != nullptr && is_same_constant(now, value.ptr()));
}

namespace {

// The class of hooks that are active during a capture, which may be another thread's.
PyTypeObject* ignored = nullptr;

// Runs no Python code, which could modify the dict.
bool is_same_key(PyObject* one, PyObject* other) {
  return one == other ||
         (Py_TYPE(one) == Py_TYPE(other) && (PyUnicode_CheckExact(one) || PyLong_CheckExact(one)) &&
          is_same_constant(one, other));
}

PyObject* dict_of_object(PyObject* object) {
#if PY_VERSION_HEX < 0x030C0000
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict == nullptr ? nullptr : *dict;
#else
  PyObject* dict = PyObject_GenericGetDict(object, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict); // the object's
  return dict;
#endif
}

} // namespace

void Guards::add(const py::tuple& given) {
  static const std::unordered_map<std::string, Kind> kinds = {
      {"items", Kind::Items},
      {"class", Kind::Items},
      {"whole", Kind::Whole},
      {"list", Kind::List},
      {"cell", Kind::Cell},
      {"function", Kind::Function},
      {"object", Kind::Object},
      {"asked", Kind::Asked}};
  const auto name = given[0].cast<std::string>();
  Guard guard{kinds.at(name), given[1], nullptr, {}, {}, count_++};
  for (const auto& key : given[2].cast<py::tuple>()) {
    guard.keys.push_back(py::reinterpret_borrow<py::object>(key));
  }
  const auto values = given[3].cast<py::tuple>();
  const auto hows = given[4].cast<std::vector<int>>();
  for (size_t i = 0; i < values.size(); ++i) {
    const auto how = static_cast<Expected::How>(hows.at(i));
    const bool is_known = how == Expected::How::Same || how == Expected::How::Equal;
    guard.values.push_back({is_known ? py::object(values[i]) : py::object(), how});
  }
  if (guard.kind == Kind::Items || guard.kind == Kind::Whole) {
    PyObject* holder = guard.holder.ptr();
    guard.dict = name == "class" ? reinterpret_cast<PyTypeObject*>(holder)->tp_dict : holder;
    TORCH_INTERNAL_ASSERT(guard.dict != nullptr && PyDict_Check(guard.dict));
    versions_.emplace_back(guard.dict);
    dicts_.push_back(std::move(guard));
  } else if (guard.kind == Kind::Object) {
    attributes_.push_back(
        {guard.holder.ptr(), guard.values.at(0).value.ptr(), guard.values.at(1).value.ptr()});
    objects_.push_back(std::move(guard));
  } else {
    others_.push_back(std::move(guard));
  }
}

std::optional<Py_ssize_t> Guards::Guard::items_differ() const {
  for (size_t i = 0; i < keys.size(); ++i) {
    PyObject* now = PyDict_GetItemWithError(dict, keys[i].ptr());
    if (now == nullptr && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    if (!holds(i, now)) {
      return i;
    }
  }
  return std::nullopt;
}

std::optional<Py_ssize_t> Guards::Guard::whole_differs() const {
  Py_ssize_t position = 0;
  PyObject *key = nullptr, *value = nullptr;
  size_t i = 0;
  while (PyDict_Next(dict, &position, &key, &value) != 0) {
    if (Py_TYPE(value) == ignored) {
      continue;
    }
    if (i == values.size()) {
      return -1;
    }
    if (!is_same_key(key, keys[i].ptr()) || !holds(i, value)) {
      return PyDict_GET_SIZE(dict) == std::ssize(values) ? static_cast<Py_ssize_t>(i) : -1;
    }
    ++i;
  }
  return i == values.size() ? std::nullopt : std::optional<Py_ssize_t>(-1);
}

std::optional<Py_ssize_t> Guards::Guard::differs() const {
  PyObject* of = holder.ptr();
  const auto first_of = [&](std::initializer_list<PyObject*> now) -> std::optional<Py_ssize_t> {
    size_t i = 0;
    for (PyObject* each : now) {
      if (!holds(i, each)) {
        return i;
      }
      ++i;
    }
    return std::nullopt;
  };
  switch (kind) {
    case Kind::Items:
      return items_differ();
    case Kind::Whole:
      return whole_differs();
    case Kind::List:
      if (PyList_GET_SIZE(of) != std::ssize(values)) {
        return -1;
      }
      for (size_t i = 0; i < values.size(); ++i) {
        if (!holds(i, PyList_GET_ITEM(of, i))) {
          return i;
        }
      }
      return std::nullopt;
    case Kind::Cell:
      return first_of({PyCell_GET(of)});
    case Kind::Function: {
      const auto* function = reinterpret_cast<PyFunctionObject*>(of);
      return first_of({function->func_code, function->func_defaults, function->func_kwdefaults});
    }
    case Kind::Object:
      return first_of({reinterpret_cast<PyObject*>(Py_TYPE(of)), dict_of_object(of)});
    case Kind::Asked: {
      const auto now = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(of));
      if (!now) {
        throw py::error_already_set();
      }
      return first_of({now.ptr()});
    }
  }
  return std::nullopt;
}

bool Guards::Attributes::are_as_then() const {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == kind && dict_of_object(object) == dict;
}

bool Guards::hold() {
  for (const Attributes& each : attributes_) {
    if (C10_UNLIKELY(!each.are_as_then())) {
      return false;
    }
  }
  for (size_t i = 0; i < dicts_.size(); ++i) {
    if (C10_UNLIKELY(!versions_[i].is_seen())) {
      if (dicts_[i].differs()) {
        return false;
      }
      versions_[i].see();
    }
  }
  for (const Guard& guard : others_) {
    if (guard.differs()) {
      return false;
    }
  }
  return true;
}

std::optional<std::pair<size_t, Py_ssize_t>> Guards::failed() {
  for (const auto* guards : {&dicts_, &objects_, &others_}) {
    for (const Guard& guard : *guards) {
      if (const auto place = guard.differs()) {
        return std::pair(guard.index, *place);
      }
    }
  }
  return std::nullopt;
}

int Guards::visit(visitproc visit, void* arg) const {
  for (const auto* guards : {&dicts_, &objects_, &others_}) {
    for (const Guard& guard : *guards) {
      Py_VISIT(guard.holder.ptr());
      for (const auto& key : guard.keys) {
        Py_VISIT(key.ptr());
      }
      for (const auto& expected : guard.values) {
        Py_VISIT(expected.value.ptr());
      }
    }
  }
  return 0;
}

void Guards::clear() {
  versions_.clear();
  attributes_.clear();
  const auto objects = std::exchange(objects_, {});
  const auto dicts = std::exchange(dicts_, {});
  const auto others = std::exchange(others_, {});
}

namespace {

struct GuardsObject {
  PyObject_HEAD Guards held;

  static GuardsObject& of(PyObject* object) {
    return *reinterpret_cast<GuardsObject*>(object);
  }
};

PyTypeObject* guards_type = nullptr;

PyObject* new_guards(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  auto made = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
  if (!made) {
    throw py::error_already_set();
  }
  Guards& guards = *new (&GuardsObject::of(made.ptr()).held) Guards();
  for (const auto& guard : py::reinterpret_borrow<py::tuple>(args)) {
    guards.add(py::reinterpret_borrow<py::tuple>(guard));
  }
  return made.release().ptr();
  END_HANDLE_TH_ERRORS
}

int visit_guards(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return GuardsObject::of(self).held.visit(visit, arg);
}

int clear_guards(PyObject* self) {
  GuardsObject::of(self).held.clear();
  return 0;
}

void destroy_guards(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  GuardsObject::of(self).held.~Guards();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* hold(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(GuardsObject::of(self).held.hold() ? 1 : 0);
  END_HANDLE_TH_ERRORS
}

PyObject* failed(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  return py::cast(GuardsObject::of(self).held.failed()).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyMethodDef guards_methods[] = {
    {"hold", &hold, METH_NOARGS, "Whether all guarded state is unchanged."},
    {"failed",
     &failed,
     METH_NOARGS,
     "The first guard that fails, and the index of the place that differs."},
    {nullptr, nullptr, 0, nullptr}};

} // namespace

Guards* guards_of(py::handle object) {
  return Py_TYPE(object.ptr()) == guards_type ? &GuardsObject::of(object.ptr()).held : nullptr;
}

void bind_guards(py::module_& m) {
  static PyType_Slot slots[] = {
      {Py_tp_doc,
       const_cast<char*>("Guards on the Python state that a captured graph depends on.")},
      {Py_tp_new, reinterpret_cast<void*>(&new_guards)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy_guards)},
      {Py_tp_traverse, reinterpret_cast<void*>(&visit_guards)},
      {Py_tp_clear, reinterpret_cast<void*>(&clear_guards)},
      {Py_tp_methods, guards_methods},
      {0, nullptr}};
  static PyType_Spec guards = {
      "torchlayers._C.Guards",
      sizeof(GuardsObject),
      0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
      slots};
  auto* type = PyType_FromSpec(&guards);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  guards_type = reinterpret_cast<PyTypeObject*>(type);
  m.def("guards_ignore", [](const py::type& kind) {
    ignored = reinterpret_cast<PyTypeObject*>(kind.inc_ref().ptr());
  });
  m.attr("Guards") = py::reinterpret_steal<py::object>(type);
}

} // namespace torchlayers
