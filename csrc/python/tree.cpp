#include "python/tree.h"

#include <algorithm>

namespace torchlayers {
namespace {

namespace py = pybind11;

constexpr auto kWhere = " in a nest of tensors";

// The registry of torch.utils._pytree.
py::handle containers() {
  static auto* containers =
      new py::object(imported("torch.utils._pytree", "SUPPORTED_NODES")); // never freed
  return *containers;
}

// Whether torch.utils._pytree treats the object as a leaf. Named tuples are not in its registry.
bool is_leaf(PyObject* object) {
  if (THPVariable_CheckExact(object) || object == Py_None) {
    return true;
  }
  return !PyTuple_Check(object) &&
         PyDict_Contains(containers().ptr(), reinterpret_cast<PyObject*>(Py_TYPE(object))) == 0;
}

// Comparing and hashing these runs no Python code.
bool is_key(PyObject* object) {
  return PyUnicode_CheckExact(object) || PyLong_CheckExact(object);
}

// Detects a named tuple like torch.utils._pytree.
bool is_named_tuple(PyTypeObject* type) {
  const auto get = [&](const char* name) {
    auto found = py::reinterpret_steal<py::object>(
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name));
    if (!found) {
      PyErr_Clear();
    }
    return found;
  };
  const py::object fields = get("_fields"), make = get("_make"), as_dict = get("_asdict");
  if (!fields || !make || !as_dict || !PyTuple_Check(fields.ptr())) {
    return false;
  }
  for (const auto& field : py::reinterpret_borrow<py::tuple>(fields)) {
    if (!PyUnicode_CheckExact(field.ptr())) {
      return false;
    }
  }
  return true;
}

// Whether it is a C struct sequence, such as the type of torch.max's result.
bool is_sequence_of_c(PyTypeObject* type) {
  return type->tp_base == &PyTuple_Type && (type->tp_flags & Py_TPFLAGS_BASETYPE) == 0 &&
         PyDict_Contains(containers().ptr(), reinterpret_cast<PyObject*>(type)) == 1;
}

bool equals_key(PyObject* one, PyObject* other) {
  return one == other ||
         (is_key(one) && is_key(other) && PyObject_RichCompareBool(one, other, Py_EQ) == 1);
}

} // namespace

py::object imported(const char* module, const char* name) {
  try {
    return py::module_::import(module).attr(name);
  } catch (const py::error_already_set&) {
    const std::string path = std::string(module) + "." + name;
    if (!path.starts_with("torch.")) {
      throw;
    }
    // Raises in words, unless torch has the name after all.
    return py::module_::import("torchlayers.core.private_names").attr("lookup")(path);
  }
}

Tree Tree::tuple(Py_ssize_t size) {
  Tree tree;
  tree.structure.nodes_.push_back({Structure::Kind::Tuple, size});
  return tree;
}

bool Tree::add(PyObject* object) {
  using Kind = Structure::Kind;
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    const Deeper guard(kWhere);
    const Kind kind = PyTuple_CheckExact(object) ? Kind::Tuple : Kind::List;
    structure.nodes_.push_back({kind, PySequence_Fast_GET_SIZE(object)});
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (!add(PySequence_Fast_GET_ITEM(object, i))) {
        return false;
      }
    }
    return true;
  }
  if (PyDict_CheckExact(object)) {
    const Deeper guard(kWhere);
    structure.nodes_.push_back({Kind::Dict, PyDict_GET_SIZE(object)});
    structure.details_.push_back(py::reinterpret_steal<py::object>(PyDict_Keys(object)));
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value) != 0;) {
      if (!is_key(key) || !add(value)) {
        return false;
      }
    }
    return true;
  }
  if (PyTuple_Check(object)) {
    PyTypeObject* type = Py_TYPE(object);
    const bool is_named = is_named_tuple(type);
    if (!is_named && !is_sequence_of_c(type)) {
      return false;
    }
    const Deeper guard(kWhere);
    structure.nodes_.push_back({is_named ? Kind::Named : Kind::Sequence, PyTuple_GET_SIZE(object)});
    structure.details_.push_back(
        py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      if (!add(PyTuple_GET_ITEM(object, i))) {
        return false;
      }
    }
    return true;
  }
  if (!is_leaf(object)) {
    return false;
  }
  structure.nodes_.push_back({Kind::Leaf, 1});
  leaves.push_back(py::reinterpret_borrow<py::object>(object));
  return true;
}

Tree Tree::of(py::handle object) {
  Tree tree;
  if (tree.add(object.ptr())) {
    return tree;
  }
  const py::tuple flat = imported("torchlayers.core.pytree", "flatten")(object);
  return {flat[0].cast<Leaves>(), Structure(flat[1])};
}

Tensors Tree::tensors() const {
  Tensors tensors;
  tensors.reserve(leaves.size());
  for (const auto& leaf : leaves) {
    tensors.push_back(tensor_of(leaf));
  }
  return tensors;
}

py::object Structure::with(const Leaves& leaves) const {
  if (spec_) {
    return imported("torchlayers.core.pytree", "unflatten")(py::cast(leaves), spec_);
  }
  Rest rest{nodes_.data(), details_.data(), leaves.data()};
  return build(rest);
}

py::object Structure::build(Rest& rest) {
  const Node& root = *rest.node++;
  if (root.kind == Kind::Leaf) {
    return *rest.leaf++;
  }
  if (root.kind == Kind::Dict) {
    const py::handle keys = *rest.detail++;
    py::dict dict;
    for (Py_ssize_t i = 0; i < root.size; ++i) {
      dict[py::handle(PyList_GET_ITEM(keys.ptr(), i))] = build(rest);
    }
    return dict;
  }
  const bool is_tuple = root.kind != Kind::List;
  const bool has_type = root.kind == Kind::Named || root.kind == Kind::Sequence;
  const py::object type = has_type ? *rest.detail++ : py::object();
  auto sequence =
      py::reinterpret_steal<py::object>(is_tuple ? PyTuple_New(root.size) : PyList_New(root.size));
  for (Py_ssize_t i = 0; i < root.size; ++i) {
    PyObject* item = build(rest).release().ptr();
    if (is_tuple) {
      PyTuple_SET_ITEM(sequence.ptr(), i, item);
    } else {
      PyList_SET_ITEM(sequence.ptr(), i, item);
    }
  }
  if (has_type) {
    return root.kind == Kind::Named ? type(*py::reinterpret_borrow<py::tuple>(sequence))
                                    : type(sequence);
  }
  return sequence;
}

bool Structure::Walk::take(PyObject* object, c10::SmallVectorImpl<PyObject*>& leaves) {
  if (is_over()) {
    return false;
  }
  const Node& node = *node_++;
  switch (node.kind) {
    case Kind::Leaf:
      leaves.push_back(object);
      return true;
    case Kind::Dict: {
      PyObject* keys = detail_++->ptr();
      if (!PyDict_CheckExact(object) || PyDict_GET_SIZE(object) != node.size) {
        return false;
      }
      PyObject *key = nullptr, *value = nullptr;
      Py_ssize_t i = 0;
      for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value) != 0; ++i) {
        if (!equals_key(key, PyList_GET_ITEM(keys, i)) || !take(value, leaves)) {
          return false;
        }
      }
      return true;
    }
    case Kind::List:
      if (!PyList_CheckExact(object)) {
        return false;
      }
      break;
    case Kind::Tuple:
      if (!PyTuple_CheckExact(object)) {
        return false;
      }
      break;
    case Kind::Named:
    case Kind::Sequence:
      if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != detail_++->ptr()) {
        return false;
      }
      break;
  }
  if (PySequence_Fast_GET_SIZE(object) != node.size) {
    return false;
  }
  for (Py_ssize_t i = 0; i < node.size; ++i) {
    if (!take(PySequence_Fast_GET_ITEM(object, i), leaves)) {
      return false;
    }
  }
  return true;
}

int Structure::visit(visitproc visit, void* arg) const {
  for (const auto& detail : details_) {
    Py_VISIT(detail.ptr());
  }
  Py_VISIT(spec_.ptr());
  return 0;
}

py::object Structure::spec() const {
  if (spec_) {
    return spec_;
  }
  const auto none = with(Leaves(nodes_.size(), py::none()));
  return imported("torchlayers.core.pytree", "flatten")(none)[py::int_(1)];
}

bool Structure::operator==(const Structure& other) const {
  if (spec_ || other.spec_) {
    return spec().equal(other.spec());
  }
  const auto is_alike = [](const Node& one, const Node& another) {
    return one.kind == another.kind && one.size == another.size;
  };
  const auto is_equal = [](const auto& one, const auto& another) { return one.equal(another); };
  return std::ranges::equal(nodes_, other.nodes_, is_alike) &&
         std::ranges::equal(details_, other.details_, is_equal);
}

} // namespace torchlayers
