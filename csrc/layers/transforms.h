// The few tensor operations that a transform needs when it is entered and left.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace torchlayers {

// An argument of the transformed function, wrapped at the top layer's level.
at::Tensor wrap_argument(const at::Tensor& tensor);

// The tangent as `make_dual` needs it, copied if necessary. Call this before the layer is entered,
// or the copy becomes one of the layer's operators.
at::Tensor fit_tangent(const at::Tensor& primal, const at::Tensor& tangent);
// The primal with its tangent, at the top layer's level.
at::Tensor make_dual(const at::Tensor& primal, const at::Tensor& tangent);
// The primal and the tangent (undefined if there is none), outside that level.
std::pair<at::Tensor, at::Tensor> split_dual(const at::Tensor& dual, int64_t level);

// The gradients of outputs with respect to inputs; undefined where an input was
// not used. With `in_layer`, the top layer is in its backward phase meanwhile.
std::vector<at::Tensor> vjp(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& cotangents,
    bool retain_graph,
    bool create_graph,
    bool in_layer);

// The tensor with dimension `dim` hidden as the top layer's batch.
at::Tensor add_batch_dim(const at::Tensor& tensor, int64_t dim);

// The batched tensor that represents the tensor in the vmap of this level, or the tensor itself.
// NOTE [Made inside].
at::Tensor shown_at(const at::Tensor& tensor, int64_t level);
// The same for any vmap on the stack. torch's printing uses it too, which excludes torch's keys;
// the layers below must not take that as a sign to be bypassed.
at::Tensor shown(const at::Tensor& tensor);

// The tensor without its batch dimension, which is moved to `out_dim`; a tensor
// that this vmap did not batch is repeated `batch_size` times.
at::Tensor remove_batch_dim(
    const at::Tensor& tensor, int64_t level, const c10::SymInt& batch_size, int64_t out_dim);

} // namespace torchlayers
