// seeded: random operators draw by a key.
#pragma once

#include <utility>

#include "layers/random/keyed_draws.h"
#include "layers/random/random.h"

namespace torchlayers {

class SeededLayer final : public RandomLayer {
 public:
  explicit SeededLayer(at::Tensor key) : draws_(std::move(key)) {}

  const char* kind() const override {
    return "seeded";
  }

  Draws* draws() {
    return &draws_;
  }

 private:
  bool draw(const Operator& op, Args& args) override {
    return draws_.run(op, args, *this);
  }

  Draws draws_;
};

} // namespace torchlayers
