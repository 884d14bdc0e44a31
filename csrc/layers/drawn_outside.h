// What a function draws is drawn by somebody outside of it.
#pragma once

#include <functional>
#include <utility>

#include "layers/random.h"

namespace torchlayers {

// Who records a loop learns by it what a step draws, and has another step draw the same.
class DrawnOutsideLayer final : public RandomLayer {
 public:
  // RandomLayer::draw, called below the layer.
  using Draw = std::function<bool(const Operator& op, Args& args)>;

  explicit DrawnOutsideLayer(Draw draw) : draw_(std::move(draw)) {}

  const char* kind() const override {
    return "drawn outside";
  }

 private:
  bool draw(const Operator& op, Args& args) override;

  Draw draw_;
};

} // namespace torchlayers
