#include "values/plain.h"

#include <torch/csrc/autograd/variable.h>

#include "core/args.h"
#include "core/keys.h"
#include "core/stack.h"

namespace torchlayers {
namespace {

constexpr DispatchKeySet kPlainOnCpu(
    {DispatchKey::CPU, DispatchKey::AutogradCPU, DispatchKey::ADInplaceOrView});
constexpr DispatchKeySet kPlainOnCuda(
    {DispatchKey::CUDA, DispatchKey::AutogradCUDA, DispatchKey::ADInplaceOrView});

} // namespace

bool is_any_mode_on() {
  const auto included = thread_keys().included() - kOurKeys - kTorchFuncKeys;
  return included != c10::default_included_set;
}

bool is_plain(const at::TensorImpl& value) {
  const auto keys = value.key_set() - kAutocastKeys;
  if (keys != kPlainOnCpu && keys != kPlainOnCuda) {
    return false;
  }
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(value.autograd_meta());
  return meta == nullptr ||
         (meta->fw_grad_ == nullptr && !(value.requires_grad() && at::GradMode::is_enabled()));
}

bool nothing_is_below() {
  return mirror().empty() && !is_any_mode_on();
}

bool SkipAutograd::may_go(const Operator& op, const Args& args) {
  bool may = !op.aliases && !op.is_custom && nothing_is_below();
  visit_tensors(args, op.num_args, [&](const at::Tensor& value) { may = may && is_plain(value); });
  return may;
}

} // namespace torchlayers
