// What nobody records: plain values, and operators that skip autograd.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>

#include "core/operator.h"

namespace torchlayers {

// Whether a tensor of its dtype can have derivatives.
inline bool is_differentiable(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

// Sparse and nested tensors are torch's to see to.
inline bool is_strided(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested();
}

// Whether every operator of this thread meets something else than layers and autograd: a mode.
bool is_any_mode_on();

// Whether a tensor is plain: nothing but numbers in memory, and autograd of no kind follows it.
bool is_plain(const at::TensorImpl& value);
inline bool is_plain(const at::Tensor& value) {
  return is_plain(*value.unsafeGetTensorImpl());
}

// The same of the value that a tensor batches, if it does.
inline bool is_plain_in_batch(const at::Tensor& tensor) {
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  return is_plain(batched != nullptr ? batched->value() : tensor);
}

// Whether there is no layer on the stack, and no mode on.
bool nothing_is_below();

// How many pairs of saved-tensor hooks (torch.autograd.graph.saved_tensors_hooks) are on.
inline size_t saved_hooks_on() {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size();
}
inline bool any_saved_hooks() {
  return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

// NOTE [Skipping autograd]
// Below the lowest layer an operator meets autograd first of all, which looks at its arguments,
// finds nothing to record, and calls the dispatcher again: a tenth of what a small operator takes.
// Where the arguments are plain it is known to find nothing, and operators skip it, and so do
// those that a rule calls. Not views or writes: autograd keeps account of them. And not a user's
// own operators and rules, which may use autograd as they like.
// Whether nobody records the operator below, called with plain values.
inline bool nothing_records(const Operator& op) {
  return !op.aliases && !op.is_custom && nothing_is_below();
}

} // namespace torchlayers
