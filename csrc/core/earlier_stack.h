// The stack as it was, for code of the user's that runs later than where it was written.
#pragma once

#include <ATen/functorch/DynamicLayer.h>

#include <utility>
#include <vector>

#include "core/keys.h"
#include "core/layer.h"
#include "core/modes.h"

namespace torchlayers {

// NOTE [Where a hook runs]
// Every level that records saves tensors of its own, and so saved-tensor hooks are called by each:
// `pack` with a tensor of that level, where it is saved; `unpack` in that level's reverse pass.
// What is written inside several transforms expects them all. Checkpointing recomputes a function
// in `unpack`, its captured tensors and all, and has to find the very layers that were on when the
// hooks were: those that have ended since, and those above the level whose pass it is, while those
// entered later (the vmap of a jacrev) must not see it. Modules have to hold the tensors that they
// were called with (functional_call). So the thread's stack is exchanged for a copy taken then. A
// layer that has ended lives again as long as that lasts, and with it its tensors; one that is in
// its backward phase leaves it. What comes back has lost its place in the graphs of the levels
// below: `pack` and `unpack` run with recording off, as everywhere in torch. values/history.h gives
// it back.
using StackCopy = std::vector<at::functorch::DynamicLayer>;

// The thread's stack, with the layers that an operator on its way down has left.
StackCopy whole_stack();

// While it lives, the thread's stack is that one, and autograd records or does not.
class OnEarlierStack {
 public:
  explicit OnEarlierStack(const StackCopy& stack, bool records = false);
  ~OnEarlierStack();
  OnEarlierStack(const OnEarlierStack&) = delete;
  OnEarlierStack& operator=(const OnEarlierStack&) = delete;

 private:
  struct Changed {
    Layer* layer; // null for torch.func's
    bool* is_alive;
    bool was_alive;
    int backwards;
    size_t hooks_around;
  };

  StackCopy copy_; // keeps the layers
  StackCopy stack_outside_;
  c10::impl::PODLocalDispatchKeySet keys_outside_;
  Modes modes_outside_;
  std::vector<Changed> changed_;
};

} // namespace torchlayers
