// Tensors batched by one of our vmaps.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>

#include "core/layer.h"

namespace torchlayers {

// NOTE [Whose batch]
// torch's batched tensor knows only the level of its vmap. But two threads may have vmaps of the
// same level and size, and so may one thread, one after the other. Our batched tensor also knows
// its layer, by the layer's number. torch's batching rules create tensors of torch's kind, which
// become ours on their way out of the layer. One that never leaves it that way (a tensor saved from
// the middle of a batching rule, or made by torch's own Python functions) can be told only by its
// batch size.

// Batches the value at the level of the layer, which is on this thread's stack.
at::Tensor batched(at::Tensor value, int64_t dim, const Layer& layer);

// The value of a tensor that is batched along dimension 0 at this layer's level and whose samples
// have dimensions; null for other tensors.
const at::Tensor* batched_in_front(const at::Tensor& tensor, const Layer& layer);

// The same tensor as one of our kind, if it is torch's, of the layer's level, and not shared yet.
at::Tensor adopted(const at::Tensor& tensor, const Layer& layer);

// A 0-dimensional tensor batched by all of torch.func's vmaps on the stack; undefined if there are
// none.
at::Tensor batched_by_torch_func();

// The number of the layer that batched it; 0 for torch's kind.
uint64_t number_of(const at::functorch::BatchedTensorImpl& batched);

} // namespace torchlayers
