// Tensors of vmap and functionalize that are used outside every transform.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/operator.h"

namespace torchlayers {

// NOTE [Escaped]
// A tensor kept from a transform that has ended can't be told from a live one by torch. Its
// batching rules then end in an internal assertion, or, under a later vmap of torch.func's of the
// same level, give a wrong result; a functional tensor's numpy() reads memory that is not its own.
// So our batched and functional tensors have the front key among their own keys: the front meets
// their operators on threads where no layer of ours is active, too. It refuses the batched ones and
// puts the value of functional ones in their place, as torch does with wrappers of a grad or jvp
// that has ended. Other tensors don't have the key and pay nothing. x.new and x.new_tensor take the
// keys of x apart and know torch's alone: they are given the value inside (python/new_tensors.cpp).

// For an operator that is for no layer of ours. Throws if an argument is batched by a layer that is
// not on this thread's stack; replaces functional ones whose functionalize is not by their values.
void settle_escaped(const Operator& op, Args& args);

// Gives it the front key, if it is functional.
void add_front_key(const at::Tensor& tensor);

} // namespace torchlayers
