// Lets Ctrl-C end code that runs for long without Python.
#pragma once

#include <chrono>
#include <cstdint>

#include "core/callbacks.h"

namespace torchlayers::compiled {

// Lets Python's signal handlers run from time to time, so that Ctrl-C ends a long run.
class Interruptible {
 public:
  void look() {
    if (++steps_ % kSteps != 0) {
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (steps_ == kSteps) {
      last_ = now;
    } else if (now - last_ > kInterval) {
      last_ = now;
      callbacks.raise_if_interrupted();
    }
  }

 private:
  static constexpr uint32_t kSteps = 16; // reading the clock takes as long as a small step does
  static constexpr std::chrono::milliseconds kInterval{50};
  uint32_t steps_ = 0;
  std::chrono::steady_clock::time_point last_;
};

} // namespace torchlayers::compiled
