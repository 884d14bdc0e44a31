#include "core/below.h"

#include "core/callbacks.h"
#include "core/skip_autograd.h"

namespace torchlayers {

// Meanwhile the layer's entry lives only in this guard's frame.
Below::Below(std::vector<at::functorch::DynamicLayer>& stack)
    : entry_(std::move(stack.back())), keys_inside_(thread_keys()) {
  stack.pop_back();
  depth_ = stack.size();
}

Below::Below(const Layer& layer, const Operator& op) : Below(mirror()) {
  const auto* processing = Processing::of(layer);
  TORCH_INTERNAL_ASSERT(processing != nullptr);
  set_keys(*processing);
  if (layer.is_autograd()) {
    modes_inside_ = Modes::of_thread();
    layer.modes_below(layer.modes_of_caller(op, *modes_inside_)).set();
  }
}

Below::Below(Layer& layer, Modes here) : Below(mirror()) {
  processing_.emplace(layer);
  set_keys(*processing_);
  if (layer.is_autograd()) {
    modes_inside_ = Modes::of_thread();
    layer.modes_below(here).set();
  }
}

void Below::set_keys(const Processing& processing) {
  auto keys = processing.keys_outside();
  // NOTE [Autocast happens once]
  keys.set_excluded(keys.excluded() | kAutocastKeys);
  if (depth_ == 0) {
    keys.set_included(keys.included() - kOurKeys - kTorchFuncKeys);
  } else if (!any_layer()) {
    keys.set_included(keys.included() - kOurKeys);
  }
  thread_keys() = keys;
}

Below::~Below() {
  auto& stack = mirror();
  if (C10_UNLIKELY(stack.size() != depth_)) {
    clean_up(depth_); // NOTE [A stack left dirty]
  }
  stack.push_back(std::move(entry_));
  thread_keys() = keys_inside_;
  if (modes_inside_) {
    modes_inside_->set();
  }
}

void Below::skip_autograd(const Operator& op, bool are_plain) {
  const bool is_last = depth_ == 0;
  if (are_plain && is_last && may_skip_autograd(op) && !is_any_mode_on()) {
    auto& keys = thread_keys();
    keys.set_excluded(keys.excluded() | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  } else if (!are_plain && is_last && any_saved_hooks()) {
    callbacks.adopt_saved_hooks(); // plain autograd calls them
  }
}

} // namespace torchlayers
