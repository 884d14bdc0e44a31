// The thread's stack of layers: who is on top, who enters, who leaves.
#pragma once

#include <ATen/functorch/DynamicLayer.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <memory>
#include <vector>

#include "core/keys.h"
#include "core/layer.h"
#include "core/modes.h"

namespace torchlayers {

// NOTE [The mirror]
// There is one stack, torch.func's, and each of our layers has an entry in it.
// That lets torch's batching rules, autograd.Function and printing work on our
// levels, lets transforms of both kinds nest in any order, and lets torch's
// ThreadLocalState carry the stack to the autograd engine's threads. A layer's
// level is its entry's place. Which Layer an entry belongs to its life handle tells,
// which wrappers and other threads' copies of the stack (the engine's) hold as well:
// it is a flag in the layer, and keeps the layer.
// Never keep a reference to torch.func's stack: the engine replaces the whole of it.
inline std::vector<at::functorch::DynamicLayer>& mirror() {
  return const_cast<std::vector<at::functorch::DynamicLayer>&>(
      at::functorch::getDynamicLayerStack());
}

// NOTE [A stack left dirty]
// torch.func's stack is anybody's to push to and pop from: a kernel, or a program that uses
// torch._C._functorch, may leave it unlike it was. An operator's call below a layer is looked at
// when it is over (Below): what was left on the stack is taken off, and the front says which
// operator it was. A layer that is not at its level any more is noticed by the next operator or
// entry, and one that was taken off the stack when it is left.
extern std::atomic<int> stacks_left_dirty; // of all threads, and not said yet
// Throws if this thread's is one of them.
void refuse_dirt_of(const Operator& op);

// The layer that an entry belongs to, ended or not; null for torch.func's.
Layer* owner_of(const at::functorch::DynamicLayer& entry);
// An entry of a layer that is on the stack, or is being processed above it.
at::functorch::DynamicLayer entry_of(const Layer& layer);

// The layer on top, or null where there is none or it is torch.func's.
Layer* top_layer();

// The same for a transform that has entered its layer, which is on top unless its function has
// left the stack dirty: throws then.
Layer& entered_layer();

// The layer of this level on the thread's stack, or null where there is none of ours.
Layer* layer_at(int64_t level);

// Whether any layer on the stack is ours.
bool any_layer();

// Puts a layer on top of the stack and gives it its level (init-and-push).
void push(const std::shared_ptr<Layer>& layer);

// Takes the layer off and ends its life (pop-and-delete). Layers above it, left
// behind by code that did not leave them, go with it; their number is returned.
// Throws where the layer is not on this thread's stack.
int64_t pop(const Layer& layer);
// The same of a layer that somebody else has taken off.
bool is_on_stack(const Layer& layer);
void forget(Layer& layer);

// The layer of each entry, outermost first; null for those of torch.func.
std::vector<Layer*> layers_on_stack();

// "DynamicLayerStack[ 1:vmap 2:grad ]" in our words: "[1:vmap 2:grad]".
std::string describe_stack();

// While it lives, its layer is processing an operator: the thread's keys and modes as
// the front found them are kept for send_down, and the keys are back when it ends.
class Processing {
 public:
  explicit Processing(Layer& layer);
  ~Processing();
  Processing(const Processing&) = delete;
  Processing& operator=(const Processing&) = delete;

  // The innermost processing of this layer on this thread, or null.
  static const Processing* of(const Layer& layer);

  // The layers that this thread is processing operators of, innermost first.
  static void visit_all(c10::function_ref<void(const Layer&)> visit);

  const c10::impl::PODLocalDispatchKeySet& keys_outside() const {
    return keys_;
  }
  const Modes& modes_outside() const {
    return modes_;
  }

 private:
  const Layer& layer_;
  c10::impl::PODLocalDispatchKeySet keys_;
  Modes modes_;
  Processing* outer_;
};

// Allows only these of the keys between front and back; the Processing around it
// undoes it.
void allow_only(DispatchKeySet keys, DispatchKeySet include = {});

// For what comes back from below a layer: takes off what was left above `depth`, and keeps what was
// wrong for the front to say. NOTE [A stack left dirty].
void clean_up(size_t depth);

} // namespace torchlayers
