#include "pointwise.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include "../../args.h"
#include "../../batched.h"
#include "../../plain.h"
#include "../../stack.h"
#include "../../trace.h"

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
    return; // a Python number, which bends to any tensor
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

bool run_batched_alike(const Operator& op, Args& args, const VmapLayer& layer) {
  if (!op.is_pointwise) {
    return false;
  }
  Alike alike(layer);
  visit_tensors(args, op.num_args, [&](const at::Tensor& tensor) { alike.look_at(tensor); });
  if (!alike.holds()) {
    return false;
  }
  trace("send_down", op, layer);
  change_tensors(args, op.num_args, [&](const at::Tensor& tensor, size_t) -> at::Tensor {
    return alike.value(tensor);
  });
  {
    WithoutTop below(layer);
    PastAutograd past(PastAutograd::may_go(op, args));
    op.handle.callBoxed(&args);
  }
  change_tensors(args, op.num_returns, [&](const at::Tensor& result, size_t) {
    return alike.batched(result);
  });
  return true;
}

} // namespace torchlayers
