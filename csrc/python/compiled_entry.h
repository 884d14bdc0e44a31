// What runs for one signature of a compiled function.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "compiled/program.h"
#include "python/guards.h"
#include "python/signature.h"
#include "python/tree.h"

namespace torchlayers {

// Where a leaf of the result comes from: torchlayers/compiler/capture/recording.py.
struct ResultLeaf {
  enum class Source { Computed, Argument, Captured, Constant };
  Source source;
  size_t index = 0;
  pybind11::object constant;
};

// An entry that Python has made (torchlayers/compiler/runtime/call.py), and what C++ has to know of
// it to run it.
class KnownCall {
 public:
  KnownCall(Signature signature, pybind11::object entry);

  // Whether a call as Python makes it is the entry's; its leaves are borrowed.
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
  // On tensors that had none, where the function calls those that there are.
  bool any_hook() const;
  Leaves by_program(const compiled::Program& program, const Leaves& given) const;
  Leaves by_python(const pybind11::object& run, const Leaves& given) const;
  pybind11::object together(const Leaves& given, const Leaves& computed) const;

  Signature signature_;
  pybind11::object entry_;
  pybind11::object guards_object_;
  Guards* guards_; // null for none
  std::vector<at::Tensor> captured_;
  Leaves captured_objects_;
  std::vector<at::Tensor> unhooked_;
  std::vector<ResultLeaf> outputs_;
  Structure structure_;
};

void bind_compiled_entry(pybind11::module_& m);

} // namespace torchlayers
