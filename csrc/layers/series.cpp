#include "layers/series.h"

#include <ATen/functorch/TensorWrapper.h>

#include <typeinfo>
#include <utility>

namespace torchlayers {
namespace {

using at::functorch::TensorWrapper;

class SeriesWrapper final : public TensorWrapper {
 public:
  SeriesWrapper(
      c10::DispatchKeySet keys,
      const at::Tensor& value,
      int64_t level,
      std::shared_ptr<bool> life,
      Coefficients series)
      : TensorWrapper(keys, value, level, std::move(life), /*is_immutable=*/false),
        series(std::move(series)) {}

  const Coefficients series;
};

} // namespace

at::Tensor wrapper_with_series(
    const at::Tensor& value, const at::functorch::Interpreter& interpreter, Coefficients series) {
  const c10::DispatchKeySet keys = at::functorch::getKeysToPropagateToWrapper(value);
  return at::detail::make_tensor<SeriesWrapper>(
      keys.add(c10::DispatchKey::FuncTorchGradWrapper),
      value,
      interpreter.level(),
      interpreter.is_alive_ptr(),
      std::move(series));
}

const Coefficients* series_of(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return typeid(impl) == typeid(SeriesWrapper) ? &static_cast<const SeriesWrapper&>(impl).series
                                               : nullptr;
}

} // namespace torchlayers
