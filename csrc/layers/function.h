// What an autograd.Function needs of the stack. Its rules are Python's
// (torchlayers/autograd_function/).
#pragma once

#include <cstdint>
#include <optional>

#include "core/below.h"
#include "core/modes.h"

namespace torchlayers {

// While it lives, an autograd.Function may be applied that works on the top layer's
// level alone; torch refuses others while any transform is active.
class FunctionsOfOneLevel {
 public:
  FunctionsOfOneLevel();
  ~FunctionsOfOneLevel();
  FunctionsOfOneLevel(const FunctionsOfOneLevel&) = delete;
  FunctionsOfOneLevel& operator=(const FunctionsOfOneLevel&) = delete;

  // The innermost one on this thread, or null.
  static const FunctionsOfOneLevel* innermost();
  // The same, or null where it is for another layer.
  static const FunctionsOfOneLevel* innermost_on(const Layer& layer);

  const Modes& modes_outside() const {
    return modes_;
  }

  // NOTE [A jvp is differentiated too]
  // A Function's jvp computes its tangents on wrappers of its level, with forward AD
  // switched off. That is meant for this level: the layers below have tangents of
  // their own for what it computes, and torch.func, where it stays off, loses them.
  void set_runs_jvp(bool runs_jvp) const {
    runs_jvp_ = runs_jvp;
  }
  // The one that is running the jvp of a Function on this layer's level, or null.
  static const FunctionsOfOneLevel* running_jvp_on(const Layer& layer);

 private:
  mutable bool runs_jvp_ = false;
  const Layer* layer_;
  bool allowed_;
  Modes modes_;
  const FunctionsOfOneLevel* outer_;
};

// The top layer is off the stack between enter and leave, for the forward of an
// autograd.Function that it is processing. Applying a Function has turned recording
// off, and that is meant for its own level: below, the modes are those that it was
// applied with (those of now where no Function is being applied: a rule of the user's).
// Autocast, which happens once, is left to what the forward calls.
// Below the last layer the front stays on, to find tensors that the forward was not
// given: a wrapper of a layer that is off would there be taken for its value.
class BelowForFunction {
 public:
  void enter();
  void leave();

  // Whether this thread is below the last layer.
  static bool is_at_bottom();

 private:
  std::optional<Below> below_;
  std::optional<bool> allowed_;
};

} // namespace torchlayers
