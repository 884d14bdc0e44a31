// The Python state that a recording has read, compared before each call.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "python/dict_version.h"

namespace torchlayers {

// What a place is expected to hold: the same object, or for a constant an equal one; or nothing.
struct Expected {
  bool holds(PyObject* now) const;

  pybind11::object value; // null for nothing
  bool is_constant = false;
};

// A list of such places, by what holds them.
class Guards {
 public:
  // (kind, holder, keys, values, constants) each, as torchlayers/compiler/capture/guards.py makes
  // them.
  void add(const pybind11::tuple& guard);

  bool hold();
  // The guard that does not hold, in the order of add, and which of its places; -1: the size.
  std::optional<std::pair<size_t, Py_ssize_t>> failed();

  int visit(visitproc visit, void* arg) const;
  void clear();

 private:
  enum class Kind { Items, Whole, List, Cell, Function, Object, Asked };
  // An object's class and where its attributes are. There may be many: no more than these are read.
  struct Attributes {
    bool are_as_then() const;

    PyObject* object;
    PyObject* kind;
    PyObject* dict;
  };
  struct Guard {
    std::optional<Py_ssize_t> differs() const;
    std::optional<Py_ssize_t> items_differ() const;
    std::optional<Py_ssize_t> whole_differs() const;
    bool holds(size_t place, PyObject* now) const {
      return values[place].holds(now);
    }

    Kind kind;
    pybind11::object holder;
    PyObject* dict; // of Items and Whole; the holder keeps it
    std::vector<pybind11::object> keys;
    std::vector<Expected> values;
    size_t index; // in the order of add
  };

  std::vector<Guard> dicts_;
  std::vector<DictVersion> versions_; // of dicts_
  std::vector<Guard> objects_;
  std::vector<Attributes> attributes_; // of objects_
  std::vector<Guard> others_;
  size_t count_ = 0;
};

// The guards of an object of _C.Guards, or null for None.
Guards* guards_of(pybind11::handle object);

void bind_guards(pybind11::module_& m);

} // namespace torchlayers
