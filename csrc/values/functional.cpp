#include "values/functional.h"

#include <optional>

#include "core/keys.h"
#include "core/saved_stack.h"
#include "core/stack.h"
#include "values/wrapper.h"

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

namespace {

// The level of the functional tensor inside wrappers that no layer on this stack has made. On that
// level, views of the value would be functional, and torch can't store those in a functional
// tensor.
std::optional<int64_t> level_of_hidden_functionalize(at::Tensor value) {
  const auto* wrapper = wrapper_of(value);
  while (wrapper != nullptr &&
         !(wrapper->level() && is_of_this_stack(*wrapper, *wrapper->level()))) {
    value = wrapper->value();
    wrapper = wrapper_of(value);
  }
  if (!functionalization::isFunctionalTensor(value)) {
    return std::nullopt;
  }
  return functionalization::unsafeGetFunctionalWrapper(value)->level();
}

} // namespace

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
    auto* impl = functionalization::unsafeGetFunctionalWrapper(tensor);
    std::optional<BelowLevel> below;
    if (const auto level = level_of_hidden_functionalize(impl->value())) {
      below.emplace(*level);
    }
    // Of a copy: a Function's methods run on other layers, with which a view is computed here.
    tensor = without_functional(
        at::Tensor(impl->shallow_copy_and_detach(
            impl->version_counter(), /*allow_tensor_metadata_change=*/true)));
  }
  return tensor;
}

} // namespace torchlayers
