// The rules of a layer written in Python, found by operator and called without Python in between.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/operator.h"
#include "layers/taylor.h"

namespace torchlayers {

// torch.ops.aten.add.Tensor. Held for ever, as operators are.
const pybind11::object& overload_of(const Operator& op);

// What a class of layers does with one operator.
struct RuleEntry {
  pybind11::object overload;
  pybind11::object rule;    // a Python function; null if there is none, or it is another callable
  bool takes_whole = false; // a composite operator, which then is not decomposed
  SeriesStep step = SeriesStep::None; // how C++ does it in jet's layer
  // The name of each keyword-only argument, by its position; null for others.
  std::vector<pybind11::object> keywords;
};

// The rules of one class of layers (transforms/layers/rule_table.py), as they have been looked up.
class RuleCache {
 public:
  // Asks the table on the first call of an operator.
  std::shared_ptr<const RuleEntry> find(const Operator& op, const pybind11::object& table);
  // A rule or a statement about an operator has been added.
  void forget() {
    entries_.clear();
  }

 private:
  std::unordered_map<const Operator*, std::shared_ptr<const RuleEntry>> entries_;
};

// A call of an operator that a layer's Python code is processing: for `send_down`, which needs no
// conversion of the arguments if it gets the same ones, and for the location in errors.
class ProcessedCall {
 public:
  // `objects` are what Python gets, in order, and `names` those of the last ones; the caller holds
  // them. `rule` is null if a method of the layer processes the call.
  ProcessedCall(
      const void* layer,
      const Operator& op,
      const Args& args,
      pybind11::handle overload,
      c10::ArrayRef<PyObject*> objects,
      c10::ArrayRef<PyObject*> names,
      pybind11::handle rule);
  ~ProcessedCall();
  ProcessedCall(const ProcessedCall&) = delete;
  ProcessedCall& operator=(const ProcessedCall&) = delete;

  // The innermost one of this thread; null if there is none.
  static const ProcessedCall* innermost();

  pybind11::handle rule() const {
    return rule_;
  }
  // Whether it is the call of this operator by this layer, with these arguments, none of which is a
  // list that may have been changed since.
  bool is_same(
      const void* layer,
      pybind11::handle overload,
      const pybind11::tuple& args,
      const pybind11::dict& kwargs) const;
  const Operator& op() const {
    return op_;
  }
  // The operator's arguments, as the layer got them.
  Args args() const {
    return last(args_, op_.num_args).vec();
  }

 private:
  const void* layer_;
  const Operator& op_;
  const Args& args_;
  pybind11::handle overload_;
  pybind11::handle rule_;
  c10::ArrayRef<PyObject*> objects_;
  c10::ArrayRef<PyObject*> names_;
  ProcessedCall* outer_;
};

} // namespace torchlayers
