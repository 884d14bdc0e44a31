#include "values/batched.h"

#include <typeinfo>
#include <utility>

#include "core/hooks.h"
#include "core/keys.h"

namespace torchlayers {
namespace {

using at::functorch::BatchedTensorImpl;

struct OurBatch final : BatchedTensorImpl {
  OurBatch(c10::DispatchKeySet keys, at::Tensor value, int64_t dim, const Layer& layer)
      : BatchedTensorImpl(keys, std::move(value), dim, layer.level()), number(layer.number()) {}

  const uint64_t number;
};

} // namespace

at::Tensor batched(at::Tensor value, int64_t dim, const Layer& layer) {
  if (value.is_nested()) {
    return at::functorch::makeBatched(std::move(value), dim, layer.level());
  }
  if (value.key_set().has(c10::DispatchKey::Python)) {
    hooks.met_subclass(value);
  }
  // With the front's key, which reaches us where no layer is active too. NOTE [Whose batch].
  const auto keys = at::functorch::getKeysToPropagateToWrapper(value) |
                    c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, kFront});
  return at::detail::make_tensor<OurBatch>(keys, std::move(value), dim, layer);
}

at::Tensor adopted(const at::Tensor& tensor, const Layer& layer) {
  const auto* impl = at::functorch::maybeGetBatchedImpl(tensor);
  const bool may_be = impl != nullptr && impl->level() == layer.level() && number_of(*impl) == 0 &&
                      tensor.use_count() == 1 && !impl->value().is_nested();
  return may_be ? batched(impl->value(), impl->bdim(), layer) : tensor;
}

uint64_t number_of(const BatchedTensorImpl& batched) {
  return typeid(batched) == typeid(OurBatch) ? static_cast<const OurBatch&>(batched).number : 0;
}

} // namespace torchlayers
