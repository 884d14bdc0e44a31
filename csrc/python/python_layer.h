// Layers written in Python: torchlayers.Layer.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <string>

#include "layers/custom.h"
#include "python/layer_rules.h"

namespace torchlayers {

// Works by the rules and methods of a torchlayers.Layer. Each of the two objects refers to the
// other, and the Python one may hold tensors that keep this one alive; so this one's reference is
// weak when the layer is not on a stack. A tensor of the layer and a saved stack
// (core/saved_stack.h), from which code may be run again on that stack, refer to the Python object
// too.
class PythonLayer : public CustomLayer {
 public:
  // `lifts_plainly`: neither `tensor` nor `lift` is overridden.
  PythonLayer(const pybind11::object& layer, std::string name, bool sees_all, bool lifts_plainly);
  ~PythonLayer() override;
  PythonLayer(const PythonLayer&) = delete;
  PythonLayer& operator=(const PythonLayer&) = delete;

  bool has_rule_for(const Operator& op) const override;
  void switch_on() override {
    resume();
  }
  void switch_off() override {
    suspend();
  }
  void resume() override;
  void suspend() override;
  std::shared_ptr<void> object_in_python() const override;
  std::map<std::string, c10::IValue> metadata() const override;

  // The torchlayers.Layer. Called with the GIL.
  const pybind11::object& object() const;

  // A tensor of the layer with these parts.
  pybind11::object tensor(pybind11::object value, pybind11::object parts) const;
  // The value of a tensor of the layer without parts: x.data, or a constant that was wrapped to be
  // functional. Other tensors as they are.
  at::Tensor owned_or_plain(const at::Tensor& tensor) const;
  // The Python object of a tensor with parts; null if it has none.
  pybind11::object owned(const at::Tensor& wrapper) const;
  // Calls the operator below, with the values of this layer's tensors, if the arguments are those
  // of the call that is processed; otherwise returns NotImplemented.
  pybind11::object send_down_again(
      const pybind11::object& overload,
      const pybind11::tuple& args,
      const pybind11::dict& kwargs) const;

 protected:
  bool is_gone() const override {
    return !layer_;
  }
  bool has_composite_rule(const Operator& op) const override;
  bool process_below(const Operator& op, Args& args) override;
  void process_undecomposed(const Operator& op, Args& args) override {
    call("_process_undecomposed", op, args);
  }
  at::Tensor rewritten_below(
      const at::Tensor& before, const at::Tensor& after, bool is_detached) const override;

  // A new wrapper around a value, for a tensor with these parts.
  virtual at::Tensor new_wrapper(const at::Tensor& value, const pybind11::object& /*parts*/) const {
    return wrap_value(value);
  }
  // The parts that the wrapper has in C++; null if it has none.
  virtual pybind11::object parts_in_wrapper(const at::Tensor& /*wrapper*/) const {
    return {};
  }
  // What the layer does with an operator.
  std::shared_ptr<const RuleEntry> entry_for(const Operator& op) const {
    return rules_->find(op, table_);
  }

 private:
  bool call(const char* method, const Operator& op, Args& args);
  bool call_rule(const RuleEntry& entry, const Operator& op, Args& args);
  pybind11::object argument_of_rule(
      const c10::IValue& value, const c10::Argument& argument, bool& any_owned) const;
  pybind11::object lifted(const at::Tensor& tensor) const;

  const bool lifts_plainly_;
  pybind11::object table_;
  const std::shared_ptr<RuleCache> rules_;
  pybind11::object weak_;
  pybind11::object layer_;
};

} // namespace torchlayers
