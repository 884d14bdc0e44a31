// What layers have in common that take random operators and nothing else.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// It wraps no tensor, and hands all other operators to the layers below as they are.
class RandomLayer : public Layer {
 public:
  RandomLayer() : Layer(/*is_autograd=*/false) {}

  void process(const Operator& op, Args& args) final;
  void send_down(const Operator& op, Args& args) final;
  bool follows(const at::Tensor& /*tensor*/) const final {
    return false;
  }
  // Or what it is made of would draw below the layer.
  bool decomposes(const Operator& op) const final {
    return op.is_composite;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const final;

 protected:
  // Puts a random operator's results in the place of its arguments. False where with these it draws
  // nothing.
  virtual bool draw(const Operator& op, Args& args) = 0;
};

} // namespace torchlayers
