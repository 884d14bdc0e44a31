#include "core/below.h"

#include "core/recording.h"

namespace torchlayers {

// The guard's own frame is the only place where the layer's entry lives meanwhile.
Below::Below(const Layer& layer, const Operator& op)
    : entry_(std::move(mirror().back())), keys_inside_(thread_keys()) {
  const auto* processing = Processing::of(layer);
  TORCH_INTERNAL_ASSERT(processing != nullptr);
  enter(*processing);
  if (layer.is_autograd()) {
    modes_.emplace(layer.modes_below(layer.modes_of_caller(op)));
  }
}

Below::Below(Layer& layer, Modes here)
    : processing_(std::in_place, layer),
      entry_(std::move(mirror().back())),
      keys_inside_(thread_keys()) {
  enter(*processing_);
  if (layer.is_autograd()) {
    modes_.emplace(layer.modes_below(here));
  }
}

void Below::enter(const Processing& processing) {
  auto& below = mirror();
  below.pop_back();
  depth_ = below.size();
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
  if (C10_UNLIKELY(mirror().size() != depth_)) {
    clean_up(depth_); // NOTE [A stack left dirty]
  }
  mirror().push_back(std::move(entry_));
  thread_keys() = keys_inside_;
}

void Below::skip_autograd(const Operator& op, bool are_plain) {
  if (are_plain && nothing_records(op)) {
    auto& keys = thread_keys();
    keys.set_excluded(keys.excluded() | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  }
}

} // namespace torchlayers
