// Restores an earlier stack of layers for user code that runs later than where it was written.
#pragma once

#include <ATen/functorch/DynamicLayer.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/keys.h"
#include "core/layer.h"
#include "core/modes.h"

namespace torchlayers {

// NOTE [Where a hook runs]
// Each level that records for autograd saves its own tensors, and so each calls the saved-tensor
// hooks: `pack` with a tensor of that level, when it is saved; `unpack` in that level's reverse
// pass. Hooks written inside several transforms expect all of their layers. Checkpointing
// recomputes a function, with its captured tensors, in `unpack`, and has to find exactly the layers
// that were active when the hooks were installed, including those that have ended since and those
// above the level whose pass it is; layers entered later (the vmap of a jacrev) must not see the
// recomputation. Modules have to hold the tensors that they were called with (functional_call). So
// the thread's stack is exchanged for a copy taken at that time. Meanwhile a layer that has ended
// is alive again, and so are its tensors; a layer in its backward phase leaves that phase. The
// result has lost its place in the autograd graphs of the levels below, because `pack` and `unpack`
// run with grad mode off, as everywhere in torch; values/history.h restores it.
using StackCopy = std::vector<at::functorch::DynamicLayer>;

// The stack, with what its layers need to work when they have ended (Layer::object_in_python).
std::shared_ptr<const StackCopy> to_run_on_later(StackCopy stack);

// The thread's stack, including the layers that the current operator has already gone below.
StackCopy whole_stack();

// While it lives, the thread's stack is `stack`, and grad mode is on if `records`.
class OnSavedStack {
 public:
  explicit OnSavedStack(const StackCopy& stack, bool records = false);
  ~OnSavedStack();
  OnSavedStack(const OnSavedStack&) = delete;
  OnSavedStack& operator=(const OnSavedStack&) = delete;

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

// While it lives, the thread's stack ends below this level, and operators reach it with the
// dispatch keys of whoever called the layer on top.
class BelowLevel {
 public:
  explicit BelowLevel(int64_t level);
  ~BelowLevel();
  BelowLevel(const BelowLevel&) = delete;
  BelowLevel& operator=(const BelowLevel&) = delete;

 private:
  c10::impl::PODLocalDispatchKeySet keys_;
  std::optional<OnSavedStack> below_;
};

} // namespace torchlayers
