// functionalize: torch's functionalization kernels, which replace mutations, and views too unless
// these are kept, by operators without side effects.
#pragma once

#include "core/layer.h"

namespace torchlayers {

class FunctionalizeLayer final : public Layer {
 public:
  explicit FunctionalizeLayer(bool keeps_views)
      : Layer(/*is_autograd=*/false), keeps_views_(keeps_views) {}

  const char* kind() const override {
    return "functionalize";
  }
  std::map<std::string, c10::IValue> metadata() const override {
    return {{"remove", keeps_views_ ? "mutations" : "mutations_and_views"}};
  }
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& tensor) const override;
  bool decomposes(const Operator& op) const override;
  bool has_rule_for(const Operator& op) const override {
    return passes_whole(op);
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const override;
  void switch_on() override;

 private:
  // Whether a layer in Python, directly below, has a rule for this composite operator.
  bool passes_whole(const Operator& op) const;
  void send_whole(const Operator& op, Args& args);
  void view_memory(Args views, const Operator& op, Args& args);
  bool has_made(const at::Tensor& tensor) const;
  bool aliases_captured(const Operator& op, const Args& args) const;
  void send_captured(const Operator& op, Args& args);

  bool keeps_views_;
};

} // namespace torchlayers
