// Stack handling for autograd.Function, whose rules are in Python (torchlayers/autograd_function/).
#pragma once

#include <c10/util/SmallVector.h>

#include "core/below.h"
#include "core/keys.h"
#include "core/modes.h"

namespace torchlayers {

// While it lives, an autograd.Function may be applied that works only on the top layer's level;
// torch rejects others while any transform is active.
class FunctionsOfOneLevel {
 public:
  FunctionsOfOneLevel();
  ~FunctionsOfOneLevel();
  FunctionsOfOneLevel(const FunctionsOfOneLevel&) = delete;
  FunctionsOfOneLevel& operator=(const FunctionsOfOneLevel&) = delete;

  // The modes for a Function's calls below this layer: those outside the innermost of these guards,
  // if that is for this layer; else the current ones.
  static Modes modes_below(const Layer& layer);

  const Modes& modes_outside() const {
    return modes_;
  }

  // The guard that is running the jvp of a Function on this layer's level, or null.
  static const FunctionsOfOneLevel* running_jvp_on(const Layer& layer);

  // Whether grad mode was on where the Function now running on this layer's level was applied; true
  // if there is none.
  static bool are_recorded_on(const Layer& layer);

  // Notes an operand of the Function now running, a tensor of the layer's level.
  static void note_operand(const at::Tensor& tensor);

  // Whether the Function now running on this layer's level was applied to this tensor. Where its
  // forward finds the tensor captured, too, its value will do: the derivative is by the operand.
  static bool has_operand(const at::Tensor& tensor, const Layer& layer);

 private:
  friend class RunsJvp;
  bool runs_jvp_ = false;
  const Layer* layer_;
  bool allowed_;
  Modes modes_;
  c10::SmallVector<const c10::TensorImpl*, 8> operands_;
  FunctionsOfOneLevel* outer_;
};

// NOTE [A jvp is differentiated too]
// A Function's jvp computes its tangents on wrappers of its level, with forward AD switched off.
// That is meant for this level only: the layers below have their own tangents of these
// computations, and torch.func, where it stays off, loses them.
// While this lives, the Function being applied runs its jvp.
class RunsJvp {
 public:
  RunsJvp();
  ~RunsJvp();
  RunsJvp(const RunsJvp&) = delete;
  RunsJvp& operator=(const RunsJvp&) = delete;

 private:
  FunctionsOfOneLevel* function_;
};

// While it lives, a Function's backward runs, which may itself differentiate: its calls are
// recorded on the top layer's level, although that layer is running its own backward.
// NOTE [The backward phase].
class RunsBackward {
 public:
  RunsBackward();
  ~RunsBackward();
  RunsBackward(const RunsBackward&) = delete;
  RunsBackward& operator=(const RunsBackward&) = delete;

 private:
  Layer* layer_;
  int backwards_;
};

// While it lives, the top layer is off the stack, for the forward of an autograd.Function that it
// is processing. Applying a Function has turned recording off, but only for its own level: below,
// the modes are those that it was applied with (or the current ones if no Function is being
// applied: a user's rule). Autocast, which happens once, is left to the operators that the forward
// calls. Below the last layer the front stays on, to find tensors that were not passed to the
// forward. NOTE [Captured by a Function].
class BelowForFunction {
 public:
  // `enters_again`: the layer is a vmap, and a vmap is entered again for the Function's methods.
  explicit BelowForFunction(bool enters_again = false);
  ~BelowForFunction();
  BelowForFunction(const BelowForFunction&) = delete;
  BelowForFunction& operator=(const BelowForFunction&) = delete;

  // The number of the vmap to enter again: the innermost that has not been entered again yet; 0 if
  // there is none.
  static uint64_t to_enter_again();

 private:
  const uint64_t to_enter_again_;
  BelowForFunction* outer_;
  const DispatchKeySet cast_outside_;
  const bool allowed_;
  const Below below_;
};

} // namespace torchlayers
