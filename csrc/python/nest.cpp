#include "python/nest.h"

#include <torch/csrc/autograd/python_variable.h>

namespace torchlayers {
namespace {

namespace py = pybind11;

// Python's guard against recursion that does not end.
class Deeper {
 public:
  Deeper() {
    if (Py_EnterRecursiveCall(" in a nest of tensors") != 0) {
      throw py::error_already_set();
    }
  }
  ~Deeper() {
    Py_LeaveRecursiveCall();
  }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
};

bool is_constant(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
         PyFloat_CheckExact(object) || PyComplex_CheckExact(object) || PyUnicode_CheckExact(object);
}

bool is_sequence(PyObject* object) {
  return PyTuple_CheckExact(object) || PyList_CheckExact(object);
}

// Comparing and hashing these runs no Python code.
bool is_key(PyObject* object) {
  return PyUnicode_CheckExact(object) || PyLong_CheckExact(object);
}

py::object rebuild(PyObject* object, c10::ArrayRef<at::Tensor>& rest) {
  if (THPVariable_CheckExact(object)) {
    TORCH_CHECK(!rest.empty(), "torchlayers: a list or dict was changed while it was in use");
    const at::Tensor& tensor = rest.front();
    rest = rest.slice(1);
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  }
  if (PyTuple_CheckExact(object)) {
    py::tuple copy(PyTuple_GET_SIZE(object));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      PyTuple_SET_ITEM(copy.ptr(), i, rebuild(PyTuple_GET_ITEM(object, i), rest).release().ptr());
    }
    return copy;
  }
  if (PyList_CheckExact(object)) {
    py::list copy;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      copy.append(rebuild(PyList_GET_ITEM(object, i), rest));
    }
    return copy;
  }
  if (PyDict_CheckExact(object)) {
    py::dict copy;
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value) != 0;) {
      copy[py::handle(key)] = rebuild(value, rest);
    }
    return copy;
  }
  return py::reinterpret_borrow<py::object>(object);
}

bool are_alike(PyObject* one, PyObject* other) {
  if (THPVariable_CheckExact(one)) {
    return THPVariable_CheckExact(other);
  }
  if (Py_TYPE(one) != Py_TYPE(other)) {
    return false;
  }
  if (is_sequence(one)) {
    bool alike = PySequence_Fast_GET_SIZE(one) == PySequence_Fast_GET_SIZE(other);
    for (Py_ssize_t i = 0; alike && i < PySequence_Fast_GET_SIZE(one); ++i) {
      alike = are_alike(PySequence_Fast_GET_ITEM(one, i), PySequence_Fast_GET_ITEM(other, i));
    }
    return alike;
  }
  if (!PyDict_CheckExact(one) || PyDict_GET_SIZE(one) != PyDict_GET_SIZE(other)) {
    return false;
  }
  PyObject *key = nullptr, *value = nullptr, *other_key = nullptr, *other_value = nullptr;
  Py_ssize_t at = 0, other_at = 0;
  while (PyDict_Next(one, &at, &key, &value) != 0) {
    PyDict_Next(other, &other_at, &other_key, &other_value);
    if (PyObject_RichCompareBool(key, other_key, Py_EQ) != 1 || !are_alike(value, other_value)) {
      return false;
    }
  }
  return true;
}

} // namespace

bool is_plain(py::handle object) {
  return THPVariable_CheckExact(object.ptr());
}

bool Nest::collect(PyObject* object) {
  if (THPVariable_CheckExact(object)) {
    tensors_.push_back(THPVariable_Unpack(object));
    return true;
  }
  if (is_sequence(object)) {
    const Deeper deeper;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (!collect(PySequence_Fast_GET_ITEM(object, i))) {
        return false;
      }
    }
    return true;
  }
  if (PyDict_CheckExact(object)) {
    const Deeper deeper;
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value) != 0;) {
      if (!is_key(key) || !collect(value)) {
        return false;
      }
    }
    return true;
  }
  has_only_tensors_ = false;
  return is_constant(object);
}

std::optional<Nest> Nest::of(py::handle object) {
  Nest nest(object);
  return nest.collect(object.ptr()) ? std::optional(std::move(nest)) : std::nullopt;
}

py::object Nest::with(const Tensors& tensors) const {
  c10::ArrayRef<at::Tensor> rest = tensors;
  return rebuild(object_.ptr(), rest);
}

Nest Nest::copy() const {
  Nest copy = *this;
  copy.object_ = with(tensors_);
  return copy;
}

bool Nest::is_shaped_as(const Nest& other) const {
  return are_alike(object_.ptr(), other.object_.ptr());
}

} // namespace torchlayers
