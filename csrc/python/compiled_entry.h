// A compiled function's entry: the program for one signature.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "compiled/program.h"
#include "python/guards.h"
#include "python/signature.h"
#include "python/tree.h"

namespace torchlayers {

// The source of a leaf of the result; see torchlayers/compiler/capture/recording.py.
struct ResultLeaf {
  enum class Source { Computed, Number, Argument, Captured, Constant };
  Source source;
  size_t index = 0;
  pybind11::object constant;
};

// An entry created by Python (torchlayers/compiler/runtime/call.py), with the data that C++ needs
// to run it.
class KnownCall {
 public:
  KnownCall(Signature signature, pybind11::object entry);

  // Whether this entry handles a call by Python's calling convention; `leaves` is filled with
  // borrowed references.
  bool fits(
      const CallModes& modes,
      PyObject* const* args,
      Py_ssize_t count,
      PyObject* names,
      c10::SmallVectorImpl<PyObject*>& leaves) const {
    leaves.clear();
    return signature_.fits(modes, args, count, names, leaves) && signature_.fits(captured_) &&
           !any_hook() && (guards_ == nullptr || guards_->hold());
  }

  pybind11::object run(const c10::SmallVectorImpl<PyObject*>& leaves) const;

  bool is_of(const PyObject* entry) const {
    return entry_.ptr() == entry;
  }

  int visit(visitproc visit, void* arg) const;

 private:
  // Whether a tensor that had no hooks at the time of capture has some now, and the function calls
  // hooks.
  bool any_hook() const;
  Leaves by_program(const compiled::Program& program, const Leaves& given) const;
  Leaves by_python(const pybind11::object& run, const Leaves& given) const;
  pybind11::object together(const Leaves& given, const Leaves& computed) const;

  Signature signature_;
  pybind11::object entry_;
  pybind11::object guards_object_;
  Guards* guards_; // null if there are none
  std::vector<at::Tensor> captured_;
  Leaves captured_objects_;
  std::vector<at::Tensor> unhooked_;
  std::vector<ResultLeaf> outputs_;
  Structure structure_;
};

void bind_compiled_entry(pybind11::module_& m);

} // namespace torchlayers
