#include "layers/custom_function.h"

#include <ATen/functorch/DynamicLayer.h>

#include <algorithm>

#include "core/callbacks.h"
#include "core/keys.h"
#include "core/skip_autograd.h"
#include "core/stack.h"
#include "layers/captured.h"

namespace torchlayers {
namespace {

thread_local FunctionsOfOneLevel* innermost_function = nullptr;
thread_local BelowForFunction* innermost_below = nullptr;

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
    callbacks.adopt_saved_hooks();
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

bool FunctionsOfOneLevel::are_recorded_on(const Layer& layer) {
  const auto* function = innermost_function;
  while (function != nullptr && function->layer_ != &layer) {
    function = function->outer_;
  }
  return function == nullptr || function->modes_.grad;
}

void FunctionsOfOneLevel::note_operand(const at::Tensor& tensor) {
  if (innermost_function != nullptr) {
    innermost_function->operands_.push_back(tensor.unsafeGetTensorImpl());
  }
}

bool FunctionsOfOneLevel::has_operand(const at::Tensor& tensor, const Layer& layer) {
  const auto* function = innermost_function;
  while (function != nullptr && function->layer_ != &layer) {
    function = function->outer_;
  }
  const auto* operand = tensor.unsafeGetTensorImpl();
  return function != nullptr &&
         std::ranges::find(function->operands_, operand) != function->operands_.end();
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

RunsBackward::RunsBackward()
    : layer_(top_layer()), backwards_(layer_ != nullptr ? layer_->leave_backward() : 0) {}

RunsBackward::~RunsBackward() {
  if (layer_ != nullptr) {
    layer_->return_to_backward(backwards_);
  }
}

BelowForFunction::BelowForFunction(bool enters_again)
    : to_enter_again_(enters_again ? entered_layer().number() : 0),
      outer_(innermost_below),
      cast_outside_(thread_keys().excluded() & kAutocastKeys),
      allowed_(at::functorch::getSingleLevelAutogradFunctionAllowed()),
      below_(entered_layer(), FunctionsOfOneLevel::modes_below(entered_layer())) {
  auto& keys = thread_keys();
  keys.set_excluded((keys.excluded() - kAutocastKeys) | cast_outside_);
  if (mirror().empty()) {
    keys.set_included(keys.included() | DispatchKeySet(kFront));
  }
  at::functorch::setSingleLevelAutogradFunctionAllowed(false);
  innermost_below = this;
  ++functions_at_work;
}

BelowForFunction::~BelowForFunction() {
  --functions_at_work;
  innermost_below = outer_;
  at::functorch::setSingleLevelAutogradFunctionAllowed(allowed_);
}

uint64_t BelowForFunction::to_enter_again() {
  const auto* below = innermost_below;
  while (below != nullptr &&
         (below->to_enter_again_ == 0 || entered_for(below->to_enter_again_) != nullptr)) {
    below = below->outer_;
  }
  return below != nullptr ? below->to_enter_again_ : 0;
}

} // namespace torchlayers
