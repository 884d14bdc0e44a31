#include "values/batched.h"

#include <ATen/EmptyTensor.h>

#include <typeinfo>
#include <utility>
#include <vector>

#include "core/callbacks.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::BatchedTensorImpl;

struct OurBatch final : BatchedTensorImpl {
  OurBatch(c10::DispatchKeySet keys, at::Tensor value, int64_t dim, const Layer& layer)
      : BatchedTensorImpl(keys, std::move(value), dim, layer.level()), number(layer.number()) {}

  const uint64_t number;

 private:
  // torch prints this after "Cannot access storage of ".
  const char* tensorimpl_type_name() const override {
    return "a tensor batched by torchlayers.vmap: return it from the function, and copy or save "
           "the result";
  }
};

} // namespace

at::Tensor batched(at::Tensor value, int64_t dim, const Layer& layer) {
  if (value.is_nested()) {
    return at::functorch::makeBatched(std::move(value), dim, layer.level());
  }
  if (value.key_set().has(c10::DispatchKey::Python)) {
    callbacks.met_subclass(value);
  }
  // NOTE [Escaped].
  const auto keys = at::functorch::getKeysToPropagateToWrapper(value) |
                    c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, kFront});
  return at::detail::make_tensor<OurBatch>(keys, std::move(value), dim, layer);
}

const at::Tensor* batched_in_front(const at::Tensor& tensor, const Layer& layer) {
  const auto* impl = at::functorch::maybeGetBatchedImpl(tensor);
  if (impl == nullptr || impl->level() != layer.level() || impl->bdim() != 0 || tensor.dim() == 0 ||
      has_escaped(tensor, layer)) {
    return nullptr;
  }
  const at::Tensor& value = impl->value();
  return is_strided(value) ? &value : nullptr;
}

at::Tensor adopted(const at::Tensor& tensor, const Layer& layer) {
  const auto* impl = at::functorch::maybeGetBatchedImpl(tensor);
  const bool may_be = impl != nullptr && impl->level() == layer.level() && number_of(*impl) == 0 &&
                      tensor.use_count() == 1 && !impl->value().is_nested();
  return may_be ? batched(impl->value(), impl->bdim(), layer) : tensor;
}

at::Tensor batched_by_torch_func() {
  using at::functorch::DynamicLayer;
  using at::functorch::TransformType;
  std::vector<std::pair<int64_t, int64_t>> levels; // and batch sizes
  const auto layers = layers_on_stack();
  for (size_t i = 0; i < layers.size(); ++i) {
    const DynamicLayer& entry = mirror()[i];
    if (layers[i] == nullptr && entry.key() == TransformType::Vmap) {
      levels.emplace_back(entry.layerId(), entry.batchSize().guard_int(__FILE__, __LINE__));
    }
  }
  if (levels.empty()) {
    return {};
  }
  at::DimVector sizes;
  for (const auto& [level, size] : levels) {
    sizes.push_back(size);
  }
  at::Tensor number = at::detail::empty_cpu(sizes, at::TensorOptions());
  for (const auto& [level, size] : levels) {
    number = at::functorch::makeBatched(std::move(number), /*dim=*/0, level);
  }
  return number;
}

uint64_t number_of(const BatchedTensorImpl& batched) {
  return typeid(batched) == typeid(OurBatch) ? static_cast<const OurBatch&>(batched).number : 0;
}

} // namespace torchlayers
