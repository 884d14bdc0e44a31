// The thread's stack of layers: which is on top, pushing and popping.
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
// There is one stack, torch.func's, and each of our layers has an entry in it. That lets torch's
// batching rules, autograd.Function and printing work on our levels, lets transforms of both kinds
// nest in any order, and lets torch's ThreadLocalState carry the stack to the autograd engine's
// threads. A layer's level is the position of its entry. An entry's life handle identifies its
// Layer: it points to a flag in the layer and keeps the layer alive. Wrappers, and other threads'
// copies of the stack (the engine's), hold the handle as well.
// Never keep a reference to torch.func's stack: the engine replaces the whole of it.
inline std::vector<at::functorch::DynamicLayer>& mirror() {
  return const_cast<std::vector<at::functorch::DynamicLayer>&>(
      at::functorch::getDynamicLayerStack());
}

// NOTE [A stack left dirty]
// Any code can push to torch.func's stack and pop from it: a kernel, or a program that uses
// torch._C._functorch, may leave it changed. The stack is checked after each operator's call below
// a layer (Below): entries left on it are removed, and the front raises an error that names the
// operator. A layer that is no longer at its level is noticed by the next operator or entry, and
// one that was taken off the stack when it is left.
extern std::atomic<int> stacks_left_dirty; // on all threads, not reported yet
// Throws if this thread's stack is one of them.
void refuse_dirt_of(const Operator& op);

// The layer that an entry belongs to, alive or ended; null for an entry of torch.func's.
Layer* owner_of(const at::functorch::DynamicLayer& entry);
// An entry for a layer that is on the stack, or that is being processed above it.
at::functorch::DynamicLayer entry_of(const Layer& layer);

// The layer on top; null if there is none or it is torch.func's.
Layer* top_layer();

// The same for a transform that has entered its layer, which is on top unless its function has left
// the stack dirty; throws in that case.
Layer& entered_layer();

// The layer at this level of the thread's stack; null if there is none or it is torch.func's.
Layer* layer_at(int64_t level);

// Whether any layer on the stack is ours.
bool any_layer();

// Puts a layer on top of the stack and gives it its level (init-and-push).
void push(const std::shared_ptr<Layer>& layer);

// Takes the layer off the stack and ends its life (pop-and-delete). Layers above it that were not
// left are removed too; returns their number. Throws if the layer is not on this thread's stack.
int64_t pop(const Layer& layer);
// For a layer that other code may have taken off the stack; forget() ends it.
bool is_on_stack(const Layer& layer);
void forget(Layer& layer);

// The layer of each entry, outermost first; null for those of torch.func.
std::vector<Layer*> layers_on_stack();

// "DynamicLayerStack[ 1:vmap 2:grad ]" in our words: "[1:vmap 2:grad]".
std::string describe_stack();

// While it lives, its layer is processing an operator. Saves the thread's keys and modes as the
// front found them, for send_down, and restores the keys at the end.
class Processing {
 public:
  explicit Processing(Layer& layer);
  ~Processing();
  Processing(const Processing&) = delete;
  Processing& operator=(const Processing&) = delete;

  // The innermost processing of this layer on this thread, or null.
  static const Processing* of(const Layer& layer);

  // Visits the layers that are processing operators on this thread, innermost first.
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

// Allows only these of the keys between front and back, until the enclosing Processing ends.
void allow_only(DispatchKeySet keys, DispatchKeySet include = {});

// Called on return from below a layer: removes entries left above `depth`, and stores what was
// wrong for the front to report. NOTE [A stack left dirty].
void clean_up(size_t depth);

} // namespace torchlayers
