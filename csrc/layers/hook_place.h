// Where the hooks are that a function inside a transform puts on gradients.
#pragma once

#include <memory>
#include <vector>

#include "core/earlier_stack.h"
#include "layers/inner_levels.h"

namespace torchlayers {

// NOTE [Hooks under vmap]
// In grad(vmap(f)) a tensor that f sees is of vmap's level, which records nothing: it is grad that
// records the value in it, with all samples. A hook on the tensor is put on that value, at the
// highest level that records it, and is called once, by that level's reverse pass. It is written
// for a sample, as f is, and may use other tensors of f's. But vmap is over by then. So it is put
// on again while the hook runs, above the layers that are there; the gradient is batched as the
// tensor was, and what the hook returns goes to where the tensor has its samples.
// A jvp's tensor, and one that an inner grad does not differentiate by, hold such values too: the
// hook is on the gradient by the primal. Their levels need not be on again, as captured tensors of
// an ended jvp or grad are their values; those between vmaps are, or a level would be missing.
class HookPlace {
 public:
  // Of a hook that is given gradients by tensors that are held so, all of them at one level.
  explicit HookPlace(std::vector<Hold> holds);

  // Whether the hook is to be called inside a vmap. If not, it may be called as it is.
  bool is_under_vmap() const {
    return stack_ != nullptr;
  }

  // While it lives, the vmaps are on again.
  class Inside {
   public:
    explicit Inside(const HookPlace& place);

    // The i-th gradient as the hook is to see it, and what the hook has made of it.
    at::Tensor shown(const at::Tensor& gradient, size_t i) const;
    at::Tensor taken(const at::Tensor& made, size_t i) const;

   private:
    const std::vector<Hold>& holds_;
    const int64_t levels_outside_;
    const OnEarlierStack earlier_;
  };

 private:
  std::vector<Hold> holds_;
  std::shared_ptr<const StackCopy> stack_; // up to the innermost of the vmaps; null without any
};

} // namespace torchlayers
