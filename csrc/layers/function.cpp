#include "layers/function.h"

#include <ATen/functorch/DynamicLayer.h>

#include "core/hooks.h"
#include "core/keys.h"
#include "core/recording.h"
#include "core/stack.h"

namespace torchlayers {
namespace {

thread_local FunctionsOfOneLevel* innermost_function = nullptr;
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
  if (any_saved_hooks()) {
    hooks.adopt_saved_hooks();
  }
}

FunctionsOfOneLevel::~FunctionsOfOneLevel() {
  innermost_function = outer_;
  at::functorch::setSingleLevelAutogradFunctionAllowed(allowed_);
}

Modes FunctionsOfOneLevel::modes_below(const Layer& layer) {
  const auto* function = innermost_function;
  return function != nullptr && function->layer_ == &layer ? function->modes_ : Modes::of_thread();
}

const FunctionsOfOneLevel* FunctionsOfOneLevel::running_jvp_on(const Layer& layer) {
  const auto* function = innermost_function;
  while (function != nullptr && !(function->runs_jvp_ && function->layer_ == &layer)) {
    function = function->outer_;
  }
  return function;
}

RunsJvp::RunsJvp() : function_(innermost_function) {
  if (function_ != nullptr) {
    function_->runs_jvp_ = true;
  }
}

RunsJvp::~RunsJvp() {
  if (function_ != nullptr) {
    function_->runs_jvp_ = false;
  }
}

BelowForFunction::BelowForFunction()
    : cast_outside_(thread_keys().excluded() & kAutocastKeys),
      allowed_(at::functorch::getSingleLevelAutogradFunctionAllowed()),
      below_(entered_layer(), FunctionsOfOneLevel::modes_below(entered_layer())) {
  auto& keys = thread_keys();
  keys.set_excluded((keys.excluded() - kAutocastKeys) | cast_outside_);
  if (mirror().empty()) {
    keys.set_included(keys.included() | DispatchKeySet(kFront));
    ++at_bottom;
  }
  at::functorch::setSingleLevelAutogradFunctionAllowed(false);
}

BelowForFunction::~BelowForFunction() {
  if (mirror().empty()) {
    --at_bottom;
  }
  at::functorch::setSingleLevelAutogradFunctionAllowed(allowed_);
}

bool BelowForFunction::is_at_bottom() {
  return at_bottom > 0 && mirror().empty();
}

} // namespace torchlayers
