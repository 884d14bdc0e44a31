// Shared by grad and jvp: torch's autograd at their level, on wrapped tensors.
#pragma once

#include <bitset>

#include "core/layer.h"

namespace torchlayers {

// Facts that grad and jvp need about an operator's arguments, collected in one pass.
struct ArgumentFacts {
  bool any_at_level = false;
  bool any_dead_wrapper = false;
  // Sparse and nested tensors are differentiated by torch.
  bool are_strided = true;
  // The arguments with a tensor of this level that requires grad, and whether any has a tangent.
  std::bitset<64> requiring_grad;
  bool any_tangent = false;
};

class AutogradLayer : public Layer {
 public:
  AutogradLayer() : Layer(/*is_autograd=*/true) {}

  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& tensor) const override;
  // Not the current modes for a custom operator, or for one in a Function's jvp.
  Modes modes_of_caller(const Operator& op, Modes here) const override;

 protected:
  // What records an operator at this level: nothing, the operator's rule, or torch's autograd.
  enum class Recorder { Nobody, Rule, Autograd };

  // Where a user registers the derivative that the operator lacks.
  virtual const char* where_to_register() const = 0;

  // Looks at the last `count` values, and collects their tangents if `tangents` is not null. Throws
  // on escaped tensors.
  ArgumentFacts look_at(const Args& args, size_t count, Tangents* tangents) const;
  // Throws if the target of an in-place operator, not lifted yet, is not the transform's. A dead
  // wrapper counts as the value in it, and is replaced by that.
  void refuse_to_mutate_captured(const Operator& op, Args& args) const;
  // Bring the arguments to this level, and from it to the layers below. The latter returns whether
  // they are plain there.
  void lift_args(const Operator& op, Args& args) const;
  bool unwrap_args(const Operator& op, Args& args) const;
};

} // namespace torchlayers
