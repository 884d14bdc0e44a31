// A compiled function's entry: the program for one signature.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "compiled/program.h"
#include "python/compiled/guards.h"
#include "python/compiled/signature.h"
#include "python/tree.h"

namespace torchlayers {

// The source of a leaf of the result; see torchlayers/compiler/capture/recording.py.
struct ResultLeaf {
  enum class Source { Computed, Number, Argument, Captured, Constant };
  Source source;
  size_t index = 0;
  pybind11::object constant;
};

// The tensors that a captured function takes besides its arguments.
struct Captured {
  std::vector<at::Tensor> tensors;
  Leaves objects;
};

// A captured tensor that is read at each call; see
// torchlayers/compiler/capture/state/carried_tensors.py.
class Carried {
 public:
  explicit Carried(const pybind11::object& carried);

  // Puts the tensor of this call among the captured ones, or returns false if there is none.
  bool read(Captured& captured) const;
  int visit(visitproc visit, void* arg) const;

 private:
  // A dict and a key, a list and an index, or a cell.
  struct Place {
    PyObject* read() const; // borrowed; null if there is nothing

    pybind11::object holder, key;
  };

  Py_ssize_t position_;       // -1: it is only compared
  std::vector<Place> places_; // all hold the same tensor; empty if Python has to look
  pybind11::object now_;
};

// An entry created by Python (torchlayers/compiler/runtime/call.py), with the data that C++ needs
// to run it.
class KnownCall {
 public:
  KnownCall(Signature signature, pybind11::object entry);

  // Whether this entry handles a call by Python's calling convention; `leaves` is filled with
  // borrowed references, and `now` with the captured tensors if some are read at each call.
  bool fits(
      const CallModes& modes,
      PyObject* const* args,
      Py_ssize_t count,
      PyObject* names,
      c10::SmallVectorImpl<PyObject*>& leaves,
      Captured& now) const {
    leaves.clear();
    return signature_.fits(modes, args, count, names, leaves) &&
           (C10_LIKELY(carried_.empty()) ? signature_.fits(captured_.tensors) : carries(now)) &&
           (C10_LIKELY(admits_.is_none()) || admits(leaves, now)) && !any_hook() &&
           (guards_ == nullptr || guards_->hold());
  }

  // `now`: the captured tensors that `fits` has found.
  pybind11::object run(const c10::SmallVectorImpl<PyObject*>& leaves, const Captured& now) const;

  bool is_of(const PyObject* entry) const {
    return entry_.ptr() == entry;
  }

  int visit(visitproc visit, void* arg) const;

 private:
  // Whether a tensor that had no hooks at the time of capture has some now, and the function calls
  // hooks.
  bool any_hook() const;
  bool carries(Captured& now) const;
  // Whether the graph is right for the sizes of this call, where it has symbols for them.
  bool admits(const c10::SmallVectorImpl<PyObject*>& leaves, const Captured& now) const;
  static Leaves by_program(
      const compiled::Program& program, const Leaves& given, const Captured& captured);
  static Leaves by_python(
      const pybind11::object& run, const Leaves& given, const Captured& captured);
  pybind11::object together(
      const Leaves& given, const Leaves& computed, const Captured& captured) const;

  Signature signature_;
  pybind11::object entry_;
  pybind11::object guards_object_;
  Guards* guards_; // null if there are none
  Captured captured_;
  std::vector<Carried> carried_;
  std::vector<at::Tensor> unhooked_;
  pybind11::object admits_; // a function of the sizes and strides that are left open, or None
  mutable std::vector<int64_t> admitted_; // the last ones that it admitted
  std::vector<ResultLeaf> outputs_;
  Structure structure_;
};

void bind_compiled_entry(pybind11::module_& m);

} // namespace torchlayers
