// Base class of the layers that handle random operators and nothing else.
#pragma once

#include "core/layer.h"

namespace torchlayers {

// Wraps no tensor, and passes all other operators to the layers below unchanged.
class RandomLayer : public Layer {
 public:
  RandomLayer() : Layer(/*is_autograd=*/false) {}

  void process(const Operator& op, Args& args) final;
  void send_down(const Operator& op, Args& args) final;
  bool follows(const at::Tensor& /*tensor*/) const final {
    return false;
  }
  // Otherwise the operators in its decomposition would draw below the layer.
  bool decomposes(const Operator& op) const final {
    return op.is_composite;
  }
  at::functorch::DynamicLayer mirrored(int64_t level) const final;

 protected:
  // Replaces a random operator's arguments by its results. Returns false if it draws nothing with
  // these arguments.
  virtual bool draw(const Operator& op, Args& args) = 0;
};

} // namespace torchlayers
