#include "rules/batching/uniform_batch.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include <algorithm>

#include "core/args.h"
#include "values/batched.h"

namespace torchlayers {

using at::functorch::maybeGetBatchedImpl;

void Alike::look_at(const at::Tensor& tensor) {
  const auto* batched = maybeGetBatchedImpl(tensor);
  const int64_t rank = tensor.dim();
  if (batched != nullptr && batched->level() == layer_.level()) {
    const at::Tensor& value = batched->value();
    fits_ = fits_ && batched->bdim() == 0 && value.layout() == at::kStrided && !value.is_nested() &&
            (batched_rank_ < 0 || batched_rank_ == rank);
    batched_rank_ = rank;
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return; // a Python number, which takes the dtype of any tensor
  }
  highest_rank_ = std::max(highest_rank_, rank);
  mixes_dtypes_ = mixes_dtypes_ || dtype_.value_or(tensor.scalar_type()) != tensor.scalar_type();
  dtype_ = tensor.scalar_type();
}

const at::Tensor& Alike::value(const at::Tensor& tensor) const {
  const auto* batched = maybeGetBatchedImpl(tensor);
  return batched != nullptr && batched->level() == layer_.level() ? batched->value() : tensor;
}

at::Tensor Alike::batched(const at::Tensor& result) const {
  return torchlayers::batched(result, /*dim=*/0, layer_);
}

void Alike::put_back(Args& args, size_t count) const {
  if (args.size() < count) {
    return;
  }
  change_tensors(args, count, [&](const at::Tensor& tensor, size_t) {
    const bool was_batched = tensor.dim() == batched_rank_ + 1;
    return was_batched ? batched(tensor) : tensor;
  });
}

} // namespace torchlayers
