// Tensors that an autograd.Function reads without having been given them.
#pragma once

#include <atomic>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Captured by a Function]
// The methods of a Function run on other layers than its caller: each layer's rule takes that layer
// off the stack, and the rule of vmap enters one more vmap over the same samples, at the level that
// is free then. Tensors that the Function was given follow it. Those that it holds in an object, a
// closure or a field of ctx do not: they are of the caller's layers. Such a tensor is read as its
// value where a grad or jvp does not differentiate by it (a table of constants that was made inside
// the transform), and as batched by the vmap that was entered again. Where neither is right, a
// derivative or the samples would be lost, and that is an error.

// Of all threads: Functions that are below a layer, or in a vmap that was entered again.
extern std::atomic<int> functions_at_work;

// The tensor as it is on the layers of this thread; itself where there is nothing to change.
// Throws where a derivative or the samples would be lost.
at::Tensor resolve_captured(const at::Tensor& tensor);

// The same of what a Function's call below the layer on top has returned, for that layer to wrap.
at::Tensor resolve_returned(const at::Tensor& tensor);

// The same of all arguments.
void resolve_captured(const Operator& op, Args& args);

// The vmap on this thread's stack that is number `number`, or was entered again for it; or null.
const Layer* entered_for(uint64_t number);

} // namespace torchlayers
