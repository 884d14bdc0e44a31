#include "values/value_inside.h"

#include "core/below.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::BatchedTensorImpl;
using at::functorch::TensorWrapper;

// An explicit instantiation may name a private member.
template <class Outer, auto Value>
struct RevealInside {
  friend at::Tensor& revealed(Outer& outer) {
    return outer.*Value;
  }
};
template struct RevealInside<TensorWrapper, &TensorWrapper::value_>;
template struct RevealInside<BatchedTensorImpl, &BatchedTensorImpl::value_>;
at::Tensor& revealed(TensorWrapper& wrapper);
at::Tensor& revealed(BatchedTensorImpl& batched);

} // namespace

at::Tensor& value_inside(TensorWrapper& wrapper) {
  return revealed(wrapper);
}

at::Tensor& value_inside(BatchedTensorImpl& batched) {
  return revealed(batched);
}

void detach_value_inside(const at::Tensor& tensor, const Layer& layer, const Operator& op) {
  auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  at::Tensor& value =
      batched != nullptr ? value_inside(*batched) : value_inside(*wrapper_of(tensor));
  const Below below(layer, op);
  value = value.detach();
}

} // namespace torchlayers
