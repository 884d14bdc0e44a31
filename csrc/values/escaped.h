// Tensors of vmap and functionalize that are used outside every transform.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/operator.h"

namespace torchlayers {

// NOTE [Escaped]
// torch can't tell a tensor kept from a transform that has ended from a live one. Its batching
// rules then fail an internal assertion, or, under a later torch.func vmap of the same level, give
// a wrong result; a functional tensor's numpy() reads memory that is not its own. So our batched
// and functional tensors have the front key in their key sets: the front sees their operators even
// on threads where no layer of ours is active. It rejects the batched tensors and replaces
// functional ones by their values, as torch does with wrappers of a grad or jvp that has ended.
// A layer written in Python (layers/custom.h) would silently lose what its tensors carry, so they
// have the key too, and are rejected. Other tensors don't have the key and pay nothing. x.new and
// x.new_tensor inspect the keys of x and know only torch's: they are given the value inside
// (python/patches/new_tensors.cpp).

// For an operator that no layer of ours processes. Throws if an argument was batched by a layer
// that is not on this thread's stack, or is a tensor of a custom layer; replaces functional tensors
// whose functionalize is not on it by their values.
void settle_escaped(const Operator& op, Args& args);

// For an operator that bypasses the layers. Throws if an argument is a wrapper whose key is off:
// the kernel would read memory that it does not have. Those that only read its sizes may.
void refuse_wrapped(const Operator& op, const Args& args);

// Adds the front key to the tensor, if it is functional or a wrapper.
void add_front_key(const at::Tensor& tensor);

} // namespace torchlayers
