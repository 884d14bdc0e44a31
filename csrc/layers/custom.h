// A layer whose work is written outside this library: torchlayers.Layer, in Python.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "core/layer.h"

namespace torchlayers {

// Its tensors are wrappers of its level around a value of the layers below. What else a tensor
// carries is kept with the wrapper's Python object.
class CustomLayer final : public Layer {
 public:
  struct Work {
    // Replaces the operator's arguments by its results, which may be tensors of the layer. Called
    // below the layer. Returns false, and leaves the arguments, if the operator is to be decomposed
    // above it.
    std::function<bool(const Operator& op, Args& args)> process;
    // Throws: the operator was to be decomposed, and has no decomposition.
    std::function<void(const Operator& op)> refuse;
    // Whether the layer has a rule for a composite operator, which is decomposed otherwise.
    std::function<bool(const Operator& op)> has_rule;
  };

  // `sees_all`: `process` is called for operators without a tensor of the layer, too.
  CustomLayer(std::string name, bool sees_all, Work work)
      : Layer(/*is_autograd=*/false),
        name_(std::move(name)),
        sees_all_(sees_all),
        work_(std::move(work)) {}

  const char* kind() const override {
    return name_.c_str();
  }
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool decomposes(const Operator& op) const override {
    return op.is_composite && !work_.has_rule(op);
  }
  bool has_rule_for(const Operator& op) const override {
    return work_.has_rule(op);
  }
  bool follows(const at::Tensor& tensor) const override;
  // Lets go of what the work refers to, which may be tensors that keep the layer alive.
  void switch_off() override;
  at::functorch::DynamicLayer mirrored(int64_t level) const override;

  // A tensor of the layer around a value of the layers below. The layer may be on the stack or
  // processing an operator.
  at::Tensor wrap_value(const at::Tensor& value) const;

 private:
  std::string name_;
  bool sees_all_;
  Work work_;
};

} // namespace torchlayers
