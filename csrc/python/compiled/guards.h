// Guards on the Python state that a captured graph depends on, checked before each call.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "python/compiled/dict_version.h"

namespace torchlayers {

// The expected content of a place.
struct Expected {
  // The numbers are those of GuardedPlace.for_cpp.
  enum class How { Same, Equal, Absent, Any };
  bool holds(PyObject* now) const;

  pybind11::object value; // of Same and Equal
  How how;
};

// A list of guarded places, grouped by their holders.
class Guards {
 public:
  // A tuple (kind, holder, keys, values, how) created by
  // torchlayers/compiler/capture/state/guards.py.
  void add(const pybind11::tuple& guard);

  bool hold();
  // The first guard that fails, in the order of `add`, and the index of the place that differs; -1
  // means the size.
  std::optional<std::pair<size_t, Py_ssize_t>> failed();

  int visit(visitproc visit, void* arg) const;
  void clear();

 private:
  enum class Kind { Items, Whole, List, Cell, Function, Object, Asked };
  // An object's class and attribute dict. There may be many, so nothing else is read for each of
  // them.
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
    PyObject* dict; // of Items and Whole; kept alive by the holder
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

// The Guards inside an object of _C.Guards, or null for None.
Guards* guards_of(pybind11::handle object);

void bind_guards(pybind11::module_& m);

} // namespace torchlayers
