// The base class of layers whose work is written outside this library: torchlayers.Layer, in
// Python.
#pragma once

#include <c10/util/FunctionRef.h>

#include <string>
#include <utility>

#include "core/layer.h"

namespace torchlayers {

// Its tensors are wrappers of its level around a value of the layers below. What else a tensor
// carries is kept with the wrapper's Python object.
class CustomLayer : public Layer {
 public:
  // `sees_all`: it processes operators without a tensor of the layer, too.
  CustomLayer(std::string name, bool sees_all)
      : Layer(/*is_autograd=*/false), name_(std::move(name)), sees_all_(sees_all) {}

  const char* kind() const final {
    return name_.c_str();
  }
  void process(const Operator& op, Args& args) final;
  void send_down(const Operator& op, Args& args) final;
  bool decomposes(const Operator& op) const final {
    return op.is_composite && !takes_whole(op);
  }
  // Whether it has a rule for this composite operator.
  bool takes_whole(const Operator& op) const {
    return op.is_composite && !op.aliases && has_composite_rule(op);
  }
  bool follows(const at::Tensor& tensor) const final;
  at::functorch::DynamicLayer mirrored(int64_t level) const final;

  // A tensor of the layer around a value of the layers below. The layer has to be on the stack or
  // processing an operator.
  at::Tensor wrap_value(const at::Tensor& value) const;
  // The same by a function that makes the wrapper, at the level of this interpreter.
  at::Tensor wrap_value_as(
      const at::Tensor& value,
      c10::function_ref<at::Tensor(const at::functorch::Interpreter&)> make) const;

  // `after`, the value and parts that a write has left, with the history that `before` had on the
  // layers below, as with_history_of says (layers/functionalize/history.h). Parts that `after` lost
  // when it was detached are those of `before`.
  at::Tensor rewritten(const at::Tensor& before, const at::Tensor& after, bool is_detached) const;

 protected:
  bool sees_all() const {
    return sees_all_;
  }
  virtual bool has_composite_rule(const Operator& op) const = 0;
  // Whether the object that does the work is no more: a recomputation comes after its block.
  virtual bool is_gone() const = 0;
  // Replaces the operator's arguments by its results, which may be tensors of the layer. Called
  // below the layer. Returns false, and leaves the arguments, if the operator is to be decomposed
  // above it.
  virtual bool process_below(const Operator& op, Args& args) = 0;
  // The same above the layer, for an operator that was to be decomposed and has no decomposition,
  // or throws.
  virtual void process_undecomposed(const Operator& op, Args& args) = 0;
  // See `rewritten`. Called below the layer.
  virtual at::Tensor rewritten_below(
      const at::Tensor& before, const at::Tensor& after, bool is_detached) const = 0;

 private:
  void wrap_functional(const Operator& op, Args& results) const;

  std::string name_;
  bool sees_all_;
};

} // namespace torchlayers
