// Values and operators that autograd need not record: plain values, and operators that skip it.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>

#include "core/device.h"
#include "core/keys.h"
#include "core/operator.h"

namespace torchlayers {

// Whether a tensor of this dtype can have derivatives.
inline bool is_differentiable(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

// Sparse and nested tensors are left to torch.
inline bool is_strided(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested();
}

// Whether a mode is on: something besides layers and autograd that sees every operator here.
bool is_any_mode_on();

// Whether autograd's metadata, which the tensor has, tracks it in no mode.
bool is_untracked(const at::TensorImpl& value);

// Whether a tensor is plain: an ordinary dense tensor that neither reverse nor forward AD tracks.
inline bool is_plain(const at::TensorImpl& value) {
  return are_keys_of_plain(value.key_set() - kAutocastKeys) &&
         (value.autograd_meta() == nullptr || is_untracked(value));
}
inline bool is_plain(const at::Tensor& value) {
  return is_plain(*value.unsafeGetTensorImpl());
}

// The same for the value of a batched tensor, or for a tensor that is not batched.
inline bool is_plain_in_batch(const at::Tensor& tensor) {
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  return is_plain(batched != nullptr ? batched->value() : tensor);
}

// Whether the stack has no layer and no mode is on.
bool nothing_is_below();

// How many pairs of saved-tensor hooks (torch.autograd.graph.saved_tensors_hooks) are on.
inline size_t saved_hooks_on() {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size();
}
inline bool any_saved_hooks() {
  return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

// NOTE [Skipping autograd]
// Below the lowest layer an operator reaches autograd first, which looks at its arguments, finds
// nothing to record, and calls the dispatcher again: a tenth of the time of a small operator. With
// plain arguments there is certainly nothing to record, so operators skip autograd, and so do those
// that a rule calls. Views and writes do not skip it, because autograd tracks them; nor do custom
// operators and rules, which may use autograd as they like.
inline bool may_skip_autograd(const Operator& op) {
  return !op.aliases && !op.is_custom;
}

} // namespace torchlayers
