// Tensors batched by one of our vmaps.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Whose batch]
// torch's batched tensor knows the level of its vmap and nothing more. But two threads have vmaps
// of one level and one size, and so has one thread, one after the other. Ours knows which layer's
// it is, by the layer's number. torch's batching rules make tensors of torch's kind; what they
// return is made ours on its way out of the layer. What never comes out that way (a tensor kept
// from the middle of a batching rule, or made by torch's own Python functions) has the size of its
// batch for its one sign.

// The batched tensor of this value, of the layer, which is on this thread's stack.
at::Tensor batched(at::Tensor value, int64_t dim, const Layer& layer);

// What the tensor batches, if it does so in front, at this layer's level, and samples have
// dimensions; else null.
const at::Tensor* batched_in_front(const at::Tensor& tensor, const Layer& layer);

// The same tensor, of our kind, if it is of torch's, of the layer's level, and nobody else's yet.
at::Tensor adopted(const at::Tensor& tensor, const Layer& layer);

// A number that is batched by all vmaps of torch.func's on the stack; undefined where there are
// none.
at::Tensor batched_by_torch_func();

// The number of the layer that batched it; 0 for torch's kind.
uint64_t number_of(const at::functorch::BatchedTensorImpl& batched);

} // namespace torchlayers
