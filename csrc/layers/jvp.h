// The layer of jvp.
#pragma once

#include <c10/core/InferenceMode.h>

#include <optional>

#include "layers/autograd.h"
#include "rules/rule.h"

namespace torchlayers {

// NOTE [One dual level]
// Forward AD has a single level in the whole process, and nested jvps share it: the wrapper that
// carries a tangent tells them apart. torch.func counts its jvps, and ours are counted with them,
// so that the first to enter opens the level and the last to leave closes it. The count is kept in
// Python (core/callbacks.h).

// Inside, forward grad mode is on, inference mode is off, and the dual level is held.
class JvpLayer final : public AutogradLayer {
 public:
  const char* kind() const override {
    return "jvp";
  }
  std::map<std::string, c10::IValue> metadata() const override {
    return {
        {"previous_forward_grad_mode", previous_forward_grad_mode_},
        {"previous_inference_mode", no_inference_.has_value()}};
  }
  void process(const Operator& op, Args& args) override;
  bool decomposes(const Operator& op) const override;
  bool has_rule_for(const Operator& op) const override {
    return op.jvp_rule != nullptr;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const override;
  void switch_on() override;
  void switch_off() override;
  void resume() override;
  void suspend() override;
  Modes modes_below(Modes here) const override;

 private:
  static Recorder recorder_of(const Operator& op, const JvpRule* rule, const ArgumentFacts& facts);

  const char* where_to_register() const override {
    return " and torchlayers.extend.jvp_rule";
  }
  bool own_written_tangents(const Operator& op, const Args& args);
  void apply_rule(const JvpRule& rule, const Operator& op, Args& args, const Tangents& tangents);
  void apply_rule_in_place(const JvpRule& rule, const Operator& op, Args& args, Tangents& tangents);
  void leave_to_autograd(const Operator& op, Args& args, bool any_tangent);

  bool previous_forward_grad_mode_ = true;
  std::optional<c10::InferenceMode> no_inference_;
};

} // namespace torchlayers
