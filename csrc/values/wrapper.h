// Tensors of a level: wrapped, batched, dead or escaped.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>

#include <bitset>

#include "core/layer.h"

namespace torchlayers {

// The wrapper that a grad or jvp layer put around a value; null if it is none.
inline at::functorch::TensorWrapper* wrapper_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return impl->key_set().has(c10::DispatchKey::FuncTorchGradWrapper)
             ? static_cast<at::functorch::TensorWrapper*>(impl)
             : nullptr;
}

// NOTE [Whose level]
// A level is a place on a stack, and every thread has a stack of its own: the level 1 of
// one thread is not that of another. A wrapper holds the life handle of its layer, which
// tells them apart.
bool is_of_this_stack(const at::functorch::TensorWrapper& wrapper, int64_t level);

// Whether this layer, which is on this thread's stack, made the wrapper.
bool is_of_layer(const at::functorch::TensorWrapper& wrapper, const Layer& layer);

// The value inside wrappers whose transform has ended; other tensors as they are.
at::Tensor without_dead_wrappers(const at::Tensor& tensor);

// The same of all arguments.
void take_off_dead_wrappers(const Operator& op, Args& args);

// A wrapper of this layer's level, which has to be on top of the stack. It is
// immutable if the value belongs to someone outside the transform.
at::Tensor wrap(const at::Tensor& value, const Layer& layer, bool is_immutable);

// Whether the tensor is a wrapper of this layer's level. Throws on a tensor of a level
// above, or of another thread's stack. Dead wrappers are to be taken off first.
bool is_at_level(const at::Tensor& tensor, const Layer& layer);

// The tensor at this layer's level: itself if it is there already, else wrapped
// as a captured, immutable one. Throws on a tensor of a level above.
at::Tensor lift(const at::Tensor& tensor, const Layer& layer);

// The value inside this layer's wrapper; other tensors as they are.
at::Tensor unwrap(const at::Tensor& tensor, int64_t level);

// The tensor that holds the memory, inside the wrappers and batches of all levels.
const at::Tensor& holder_of(const at::Tensor& tensor);

// The levels at which it is batched, a bit each.
std::bitset<64> batched_levels(const at::Tensor& tensor);

// Whether each sample of these levels has its own of a tensor that comes from below a level, or a
// derivative of its own by it: it is batched at one of them, or differentiated above the lowest.
// What is batched at that level itself does not come from below it.
bool concerns(const at::Tensor& tensor, std::bitset<64> levels, int64_t below);

// Whether the tensor was batched by another vmap than those of this layer and the
// layers below it, which means that it escaped: that vmap has ended, or is not where
// the operator runs. NOTE [Whose batch].
bool has_escaped(const at::Tensor& tensor, const Layer& layer);

// Throws if it has.
void check_not_escaped(const at::Tensor& tensor, const Layer& layer);

// The same for a tensor that comes into this layer as an argument: it can't be at the
// layer's own level already, unless it belongs to another thread's stack.
void check_from_outside(const at::Tensor& tensor, const Layer& layer);

// For a layer that does not wrap its arguments: whether the tensor is a wrapper that a transform
// which has ended left behind. Throws on escaped tensors.
bool is_dead_or_escaped(const at::Tensor& tensor, const Layer& layer);

// The same of all arguments, at such a layer: unwraps what
// transforms that have ended left behind, and throws on escaped tensors.
void unwrap_dead_and_check(const Operator& op, Args& args, const Layer& layer);

} // namespace torchlayers
