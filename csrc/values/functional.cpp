#include "values/functional.h"

#include "core/keys.h"
#include "core/saved_stack.h"
#include "core/stack.h"

namespace torchlayers {

namespace functionalization = at::functionalization::impl;

const at::FunctionalTensorWrapper* functional_of(const at::Tensor& tensor) {
  if (!functionalization::isFunctionalTensor(tensor)) {
    return nullptr;
  }
  const auto* wrapper = functionalization::unsafeGetFunctionalWrapper(tensor);
  if (!wrapper->is_up_to_date()) {
    const BelowLevel below(wrapper->level());
    functionalization::sync(tensor);
  }
  return wrapper;
}

bool has_ended_functionalize(const at::Tensor& tensor) {
  if (!functionalization::isFunctionalTensor(tensor) || !tensor.key_set().has(kFront)) {
    return false;
  }
  const auto level = functionalization::unsafeGetFunctionalWrapper(tensor)->level();
  const Layer* layer = layer_at(level);
  return layer == nullptr || !layer->follows(tensor);
}

at::Tensor without_ended_functionalize(at::Tensor tensor) {
  while (has_ended_functionalize(tensor)) {
    // Of a copy: a Function's methods run on other layers, with which a view is computed here.
    auto* impl = functionalization::unsafeGetFunctionalWrapper(tensor);
    tensor = without_functional(
        at::Tensor(impl->shallow_copy_and_detach(
            impl->version_counter(), /*allow_tensor_metadata_change=*/true)));
  }
  return tensor;
}

} // namespace torchlayers
