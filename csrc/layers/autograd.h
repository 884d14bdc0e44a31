// What grad and jvp share: torch's autograd at their level, on wrapped tensors.
#pragma once

#include <bitset>

#include "core/layer.h"

namespace torchlayers {

// What grad and jvp ask of an operator's arguments, found in one look at them.
struct ArgumentFacts {
  bool any_at_level = false;
  bool any_dead_wrapper = false;
  // Sparse and nested tensors are torch's to differentiate.
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
  // Of an operator in the jvp of a Function, or called by one of the user's, not those of now.
  Modes modes_of_caller(const Operator& op) const override;

 protected:
  // Who records an operator at this level: the layer itself, by its rule; torch's autograd; nobody.
  enum class Recorder { Nobody, Rule, Autograd };

  // Where a user registers the derivative that the operator lacks.
  virtual const char* where_to_register() const = 0;

  // Looks at the last `count` values, and finds their tangents where these are asked for. Throws on
  // escaped tensors.
  ArgumentFacts look_at(const Args& args, size_t count, Tangents* tangents) const;
  // Throws where the target of an in-place operator, not lifted yet, is not the transform's. A dead
  // wrapper is as good as the value in it, which takes its place.
  void refuse_to_mutate_captured(const Operator& op, Args& args) const;
  // Brings the arguments to this level, and from it to the layers below. Returns whether they are
  // plain there.
  void lift_args(const Operator& op, Args& args) const;
  bool unwrap_args(const Operator& op, Args& args) const;
};

} // namespace torchlayers
