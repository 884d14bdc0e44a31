// Tensors that an autograd.Function reads although they were not passed to it.
#pragma once

#include <atomic>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Captured by a Function]
// The methods of a Function run on other layers than its caller: each layer's rule takes that layer
// off the stack, and the rule of vmap enters one more vmap over the same samples, at the level that
// is free then. Tensors that are passed to the Function are converted. Those that it holds in an
// object, a closure or a field of ctx are not: they belong to the caller's layers. Such a tensor is
// replaced by its value if the grad or jvp does not differentiate with respect to it (a table of
// constants that was made inside the transform), or if the Function was applied to it as well, so
// that the derivative is the operand's; or batched by the vmap that was entered again.
// Where neither is right, a derivative or the samples would be lost, which is an error.

// The number, on all threads, of Functions below a layer, and of vmaps that were entered again.
extern std::atomic<int> functions_at_work;

// The tensor as it is on the layers of this thread; itself if nothing has to change. Throws if a
// derivative or the samples would be lost.
at::Tensor resolve_captured(const at::Tensor& tensor);

// The same for a tensor that a Function's call below the top layer returned, for that layer to
// wrap.
at::Tensor resolve_returned(const at::Tensor& tensor);

// The same of all arguments.
void resolve_captured(const Operator& op, Args& args);

// The vmap on this thread's stack that is number `number`, or was entered again for it; or null.
const Layer* entered_for(uint64_t number);

} // namespace torchlayers
