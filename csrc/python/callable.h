// Python objects whose calls go directly to C++, without pybind11.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <new>
#include <utility>

namespace torchlayers {

// A Python object around a T, whose `call` it runs.
template <class T>
struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  T held;

  static T& of(PyObject* object) {
    return reinterpret_cast<Callable*>(object)->held;
  }
  template <class... Arguments>
  static PyObject* make(PyTypeObject* type, Arguments&&... arguments) {
    auto* object = reinterpret_cast<Callable*>(type->tp_alloc(type, 0));
    if (object == nullptr) {
      throw pybind11::error_already_set();
    }
    new (&object->held) T(std::forward<Arguments>(arguments)...);
    object->vectorcall = &T::call;
    return reinterpret_cast<PyObject*>(object);
  }
  static PyMemberDef* members() {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__",
         T_PYSSIZET,
         static_cast<Py_ssize_t>(offsetof(Callable, vectorcall)),
         READONLY,
         nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    return members;
  }
};

} // namespace torchlayers
