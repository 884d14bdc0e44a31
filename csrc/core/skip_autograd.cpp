#include "core/skip_autograd.h"

#include <torch/csrc/autograd/variable.h>

#include "core/stack.h"

namespace torchlayers {

bool is_any_mode_on() {
  const auto included = thread_keys().included() - kOurKeys - kTorchFuncKeys;
  return included != c10::default_included_set;
}

bool is_untracked(const at::TensorImpl& value) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(value.autograd_meta());
  return meta->fw_grad_ == nullptr && !(value.requires_grad() && at::GradMode::is_enabled());
}

bool nothing_is_below() {
  return mirror().empty() && !is_any_mode_on();
}

} // namespace torchlayers
