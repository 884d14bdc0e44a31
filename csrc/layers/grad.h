// The layer of grad.
#pragma once

#include <c10/core/InferenceMode.h>

#include <atomic>
#include <optional>

#include "layers/autograd.h"
#include "rules/vjp_call.h"

namespace torchlayers {

// Inside, grad mode is on (NOTE [no_grad inside and outside]), and inference mode is off.
class GradLayer final : public AutogradLayer {
 public:
  const char* kind() const override {
    return "grad";
  }
  std::map<std::string, c10::IValue> metadata() const override {
    return {
        {"previous_grad_mode", previous_grad_mode_},
        {"previous_inference_mode", no_inference_.has_value()}};
  }
  void process(const Operator& op, Args& args) override;
  bool decomposes(const Operator& op) const override;
  bool has_rule_for(const Operator& op) const override {
    return op.vjp_rule != nullptr;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const override;
  void switch_on() override;
  void switch_off() override;
  bool runs_backward() const override;
  int leave_backward() override {
    return backwards_running_.exchange(0);
  }
  void return_to_backward(int count) override {
    backwards_running_ += count;
  }
  Modes modes_below(Modes here) const override;

  // The first operator that the function has called with tensors that the layer differentiates, and
  // whose result is of a type without derivatives (argmax, a comparison); null if there is none.
  const Operator* operator_without_derivative() const {
    return without_derivative_;
  }

 private:
  friend class InBackward;
  Recorder recorder_of(const Operator& op, const ArgumentFacts& facts) const;

  const char* where_to_register() const override {
    return " or torchlayers.extend.vjp_rule";
  }
  void apply_rule(const VjpRule& rule, const Operator& op, Args& args);
  void apply_rule_of_view(const VjpRule& rule, const Operator& op, Args& args);
  void note_without_derivative(const Operator& op, const at::Tensor& result);

  bool previous_grad_mode_ = true;
  const Operator* without_derivative_ = nullptr;
  std::optional<c10::InferenceMode> no_inference_;
  // Shared with the engine's device threads, which run this layer's backward.
  std::atomic<int> backwards_running_{0};
};

// While it lives, the layer runs its backward. NOTE [The backward phase].
class InBackward {
 public:
  explicit InBackward(GradLayer* layer);
  ~InBackward();
  InBackward(const InBackward&) = delete;
  InBackward& operator=(const InBackward&) = delete;

 private:
  GradLayer* layer_;
};

} // namespace torchlayers
