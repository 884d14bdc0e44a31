#include "layers/function.h"

#include <ATen/functorch/DynamicLayer.h>

#include "core/keys.h"
#include "core/stack.h"

namespace torchlayers {
namespace {

thread_local const FunctionsOfOneLevel* innermost_function = nullptr;
thread_local int at_bottom = 0;

} // namespace

FunctionsOfOneLevel::FunctionsOfOneLevel()
    : layer_(top_layer()),
      allowed_(at::functorch::getSingleLevelAutogradFunctionAllowed()),
      modes_(Modes::of_thread()),
      outer_(innermost_function) {
  if (const auto* function = layer_ != nullptr ? running_jvp_on(*layer_) : nullptr) {
    modes_.forward_grad = function->modes_.forward_grad;
  }
  at::functorch::setSingleLevelAutogradFunctionAllowed(true);
  innermost_function = this;
}

FunctionsOfOneLevel::~FunctionsOfOneLevel() {
  innermost_function = outer_;
  at::functorch::setSingleLevelAutogradFunctionAllowed(allowed_);
}

const FunctionsOfOneLevel* FunctionsOfOneLevel::innermost() {
  return innermost_function;
}

const FunctionsOfOneLevel* FunctionsOfOneLevel::innermost_on(const Layer& layer) {
  return innermost_function != nullptr && innermost_function->layer_ == &layer ? innermost_function
                                                                               : nullptr;
}

const FunctionsOfOneLevel* FunctionsOfOneLevel::running_jvp_on(const Layer& layer) {
  const auto* function = innermost_function;
  while (function != nullptr && !(function->runs_jvp_ && function->layer_ == &layer)) {
    function = function->outer_;
  }
  return function;
}

void BelowForFunction::enter() {
  Layer* layer = top_layer();
  TORCH_CHECK(layer != nullptr && !below_, "torchlayers: no layer to go below");
  const auto* function = FunctionsOfOneLevel::innermost_on(*layer);
  const auto cast_outside = thread_keys().excluded() & kAutocastKeys;
  below_.emplace(*layer, function != nullptr ? function->modes_outside() : Modes::of_thread());
  auto& keys = thread_keys();
  keys.set_excluded((keys.excluded() - kAutocastKeys) | cast_outside);
  if (mirror().empty()) {
    keys.set_included(keys.included() | DispatchKeySet(kFront));
    ++at_bottom;
  }
  allowed_ = at::functorch::getSingleLevelAutogradFunctionAllowed();
  at::functorch::setSingleLevelAutogradFunctionAllowed(false);
}

void BelowForFunction::leave() {
  if (mirror().empty()) {
    --at_bottom;
  }
  at::functorch::setSingleLevelAutogradFunctionAllowed(*allowed_);
  below_.reset();
}

bool BelowForFunction::is_at_bottom() {
  return at_bottom > 0 && mirror().empty();
}

} // namespace torchlayers
