// A layer whose function gets its random numbers from code outside the function.
#pragma once

#include <functional>
#include <utility>

#include "layers/random/random.h"

namespace torchlayers {

// Records the draws of one loop step while a loop is captured, so that another step can repeat
// them.
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
