// Functional tensors, which functionalize wraps values in.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>

namespace torchlayers {

// The functional wrapper, if its value is up to date: a write to another view of its memory may be
// pending. Null if it is not, or the tensor is not functional.
inline const at::FunctionalTensorWrapper* functional_of(const at::Tensor& tensor) {
  if (!at::functionalization::impl::isFunctionalTensor(tensor)) {
    return nullptr;
  }
  const auto* wrapper = at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
  return wrapper->is_up_to_date() ? wrapper : nullptr;
}

inline at::Tensor made_functional(const at::Tensor& value, int64_t level) {
  at::Tensor tensor = at::functionalization::impl::to_functional_tensor(value);
  at::functionalization::impl::unsafeGetFunctionalWrapper(tensor)->set_level(level);
  return tensor;
}

} // namespace torchlayers
