// seeded: random operators draw by a key.
#pragma once

#include "core/layer.h"
#include "layers/draws.h"

namespace torchlayers {

// It wraps no tensor, and hands all other operators to the layers below as they are.
class SeededLayer final : public Layer {
 public:
  explicit SeededLayer(at::Tensor key) : Layer(/*is_autograd=*/false), draws_(std::move(key)) {}

  const char* kind() const override {
    return "seeded";
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

  Draws* draws() {
    return &draws_;
  }

 private:
  Draws draws_;
};

} // namespace torchlayers
