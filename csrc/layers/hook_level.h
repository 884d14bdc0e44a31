// Where hooks on gradients run that a function inside a transform has registered.
#pragma once

#include <memory>
#include <vector>

#include "core/saved_stack.h"
#include "layers/level_views.h"

namespace torchlayers {

// NOTE [Hooks under vmap]
// In grad(vmap(f)) a tensor that f sees is at vmap's level, which records nothing: grad records the
// value in it, with all samples. A hook on the tensor is registered on that value, at the highest
// level that records it, and is called once, by that level's reverse pass. Like f it is written for
// one sample, and may use other tensors of f's. But by then vmap is over. So the vmap is on the
// stack again while the hook runs, above the layers that are there; the gradient is batched as the
// tensor was, and the batch of the hook's result is moved to where the tensor has it.
// A tensor of a jvp, or of an inner grad that does not differentiate with respect to it, holds such
// a value too: the hook is on the gradient with respect to the primal. These levels need not be on
// again, because captured tensors of an ended jvp or grad are read as their values; those between
// vmaps are, because a level would be missing otherwise.
class HookPlace {
 public:
  // For a hook on gradients with respect to tensors that are held in these ways, all of them at one
  // level.
  explicit HookPlace(std::vector<Hold> holds);

  // Whether the hook has to be called inside a vmap. If not, it may be called directly.
  bool is_under_vmap() const {
    return stack_ != nullptr;
  }

  // While it lives, the vmaps are on the stack again.
  class Inside {
   public:
    explicit Inside(const HookPlace& place);

    // The i-th gradient as the hook should see it; and the hook's result, taken back out.
    at::Tensor shown(const at::Tensor& gradient, size_t i) const;
    at::Tensor taken(const at::Tensor& made, size_t i) const;

   private:
    const std::vector<Hold>& holds_;
    const int64_t levels_outside_;
    const OnSavedStack earlier_;
  };

 private:
  std::vector<Hold> holds_;
  std::shared_ptr<const StackCopy> stack_; // up to the innermost of the vmaps; null without any
};

} // namespace torchlayers
