#include "python/tree.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>

namespace torchlayers {
namespace {

namespace py = pybind11;

// Python's guard against recursion that does not end.
auto deeper() {
  if (Py_EnterRecursiveCall(" in a nest of tensors") != 0) {
    throw py::error_already_set();
  }
  return c10::make_scope_exit(&Py_LeaveRecursiveCall);
}

// Whether torch.utils._pytree takes it for one, which knows namedtuples without a list of them.
bool is_leaf(PyObject* object) {
  static auto* containers =
      new py::object(imported("torch.utils._pytree", "SUPPORTED_NODES")); // Python ends before this
  if (THPVariable_CheckExact(object) || object == Py_None) {
    return true;
  }
  return !PyTuple_Check(object) &&
         PyDict_Contains(containers->ptr(), reinterpret_cast<PyObject*>(Py_TYPE(object))) == 0;
}

// Comparing and hashing these runs no Python code.
bool is_key(PyObject* object) {
  return PyUnicode_CheckExact(object) || PyLong_CheckExact(object);
}

} // namespace

py::object imported(const char* module, const char* name) {
  return py::module_::import(module).attr(name);
}

Tree Tree::tuple(Py_ssize_t size) {
  Tree tree;
  tree.structure.nodes_.push_back({Structure::Kind::Tuple, size});
  return tree;
}

bool Tree::add(PyObject* object) {
  using Kind = Structure::Kind;
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    const auto guard = deeper();
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
    const auto guard = deeper();
    structure.nodes_.push_back({Kind::Dict, PyDict_GET_SIZE(object)});
    structure.keys_.push_back(py::reinterpret_steal<py::object>(PyDict_Keys(object)));
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value) != 0;) {
      if (!is_key(key) || !add(value)) {
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
  const py::tuple flat = imported("torchlayers.tree", "flatten")(object);
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
    return imported("torchlayers.tree", "unflatten")(py::cast(leaves), spec_);
  }
  Rest rest{nodes_.data(), keys_.data(), leaves.data()};
  return build(rest);
}

py::object Structure::build(Rest& rest) {
  const Node& root = *rest.node++;
  if (root.kind == Kind::Leaf) {
    return *rest.leaf++;
  }
  if (root.kind == Kind::Dict) {
    const py::handle keys = *rest.keys++;
    py::dict dict;
    for (Py_ssize_t i = 0; i < root.size; ++i) {
      dict[py::handle(PyList_GET_ITEM(keys.ptr(), i))] = build(rest);
    }
    return dict;
  }
  const bool is_tuple = root.kind == Kind::Tuple;
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
  return sequence;
}

py::object Structure::spec() const {
  if (spec_) {
    return spec_;
  }
  const auto none = with(Leaves(nodes_.size(), py::none()));
  return imported("torchlayers.tree", "flatten")(none)[py::int_(1)];
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
         std::ranges::equal(keys_, other.keys_, is_equal);
}

} // namespace torchlayers
