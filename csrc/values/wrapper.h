// Tensors of a level: wrapped, batched, dead or escaped.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>

#include <bitset>
#include <string>

#include "core/keys.h"
#include "core/layer.h"

namespace torchlayers {

// The wrapper that a grad or jvp layer put around a value; null if the tensor is not one.
inline at::functorch::TensorWrapper* wrapper_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return impl->key_set().has(c10::DispatchKey::FuncTorchGradWrapper)
             ? static_cast<at::functorch::TensorWrapper*>(impl)
             : nullptr;
}

// Whether it is a tensor of a layer in layers/custom.h, alive or ended: only those wrappers have
// the front key. NOTE [Escaped].
inline bool is_of_custom_layer(const at::Tensor& tensor) {
  return wrapper_of(tensor) != nullptr && tensor.key_set().has(kFront);
}

// NOTE [Whose level]
// A level is a position on a stack, and every thread has its own stack: level 1 of one thread is
// not level 1 of another. A wrapper holds the life handle of its layer, which tells them apart.
bool is_of_this_stack(const at::functorch::TensorWrapper& wrapper, int64_t level);

// Whether this layer, which is on this thread's stack, made the wrapper.
bool is_of_layer(const at::functorch::TensorWrapper& wrapper, const Layer& layer);

// "a tensor of grad (level 2)", for errors about a wrapper.
std::string described(const at::Tensor& tensor);

inline bool has_dead_wrapper(const at::Tensor& tensor) {
  const auto* wrapper = wrapper_of(tensor);
  return wrapper != nullptr && !wrapper->is_alive();
}

// The value inside wrappers whose transform has ended, and inside functional tensors within them
// whose functionalize has; other tensors as they are. Throws on a tensor of a custom layer, whose
// value is only a part of it.
at::Tensor without_dead_wrappers(const at::Tensor& tensor);

// Unwraps such wrappers among the arguments.
void take_off_dead_wrappers(const Operator& op, Args& args);

// Wraps a value at the level of this layer, which has to be on top of the stack. The wrapper is
// immutable if the value belongs to code outside the transform.
at::Tensor wrap(const at::Tensor& value, const Layer& layer, bool is_immutable);

// Whether the tensor is a wrapper of this layer's level. Throws on a tensor of a level above, or of
// another thread's stack. Dead wrappers have to be removed first.
bool is_at_level(const at::Tensor& tensor, const Layer& layer);

// The tensor at this layer's level: itself if it is there already, else wrapped
// as a captured, immutable one. Throws on a tensor of a level above.
at::Tensor lift(const at::Tensor& tensor, const Layer& layer);

// The value inside this layer's wrapper; other tensors as they are.
at::Tensor unwrap(const at::Tensor& tensor, int64_t level);

// The tensor that holds the memory, inside the wrappers and batches of all levels.
const at::Tensor& holder_of(const at::Tensor& tensor);

// The levels at which it is batched, one bit each.
std::bitset<64> batched_levels(const at::Tensor& tensor);

// Whether samples of these levels differ in a tensor that comes from below level `below`, or in
// derivatives with respect to it: it is batched at one of the levels, or differentiated above the
// lowest of them. A batch at `below` itself does not come from below it.
bool concerns(const at::Tensor& tensor, std::bitset<64> levels, int64_t below);

// Whether the tensor was batched by a vmap other than this layer and the layers below it. Then it
// has escaped: that vmap has ended, or is not on the stack that the operator runs on.
// NOTE [Whose batch].
bool has_escaped(const at::Tensor& tensor, const Layer& layer);

// Throws if it has.
void check_not_escaped(const at::Tensor& tensor, const Layer& layer);

// The same for a tensor that enters this layer as an argument: it can't be at the layer's level
// already, unless it belongs to another thread's stack.
void check_from_outside(const at::Tensor& tensor, const Layer& layer);

// For a layer that does not wrap its arguments: whether the tensor is a wrapper left behind by a
// transform that has ended. Throws on escaped tensors.
bool is_dead_or_escaped(const at::Tensor& tensor, const Layer& layer);

// The same for all arguments of such a layer: unwraps those wrappers, and throws on escaped
// tensors.
void unwrap_dead_and_check(const Operator& op, Args& args, const Layer& layer);

} // namespace torchlayers
