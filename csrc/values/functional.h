// Functional tensors, which functionalize wraps values in.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>

namespace torchlayers {

// The functional wrapper, its value up to date: a write to another view of its memory may have been
// pending. Null if the tensor is not functional.
const at::FunctionalTensorWrapper* functional_of(const at::Tensor& tensor);

// The current value of a functional tensor; other tensors as they are.
inline at::Tensor without_functional(const at::Tensor& tensor) {
  if (!at::functionalization::impl::isFunctionalTensor(tensor)) {
    return tensor;
  }
  at::functionalization::impl::sync(tensor);
  return at::functionalization::impl::from_functional_tensor(tensor);
}

inline at::Tensor made_functional(const at::Tensor& value, int64_t level) {
  at::Tensor tensor = at::functionalization::impl::to_functional_tensor(value);
  at::functionalization::impl::unsafeGetFunctionalWrapper(tensor)->set_level(level);
  return tensor;
}

// Whether it is a functional tensor whose functionalize is not on this thread's stack.
bool has_ended_functionalize(const at::Tensor& tensor);

// The value of such a tensor; other tensors as they are.
at::Tensor without_ended_functionalize(at::Tensor tensor);

} // namespace torchlayers
