// What a function draws is drawn by somebody outside of it.
#pragma once

#include <functional>

#include "core/layer.h"

namespace torchlayers {

// It wraps no tensor. Random operators it hands over; all others go to the layers below as they
// are. Who records a loop learns by it what a step draws, and has another step draw the same.
class DrawnOutsideLayer final : public Layer {
 public:
  // Called below the layer. Puts the operator's results in the place of its arguments; false where
  // with these it draws nothing.
  using Draw = std::function<bool(const Operator& op, Args& args)>;

  explicit DrawnOutsideLayer(Draw draw) : Layer(/*is_autograd=*/false), draw_(std::move(draw)) {}

  const char* kind() const override {
    return "drawn outside";
  }
  void process(const Operator& op, Args& args) override;
  void send_down(const Operator& op, Args& args) override;
  bool follows(const at::Tensor& /*tensor*/) const override {
    return false;
  }
  // Or what it is made of would draw below the layer.
  bool decomposes(const Operator& op) const override {
    return op.is_composite;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const override;

 private:
  Draw draw_;
};

} // namespace torchlayers
