#include "reverse/packed_residuals.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>

#include "core/args.h"
#include "core/errors.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

thread_local bool packing_result = false;

const at::Tensor& stand_in() {
  static const auto* tensor = new at::Tensor(at::detail::empty_cpu({0}, at::kByte));
  return *tensor;
}

} // namespace

std::unique_ptr<torch::autograd::SavedVariableHooks> (*saved_hooks_for_node)() = [] {
  return torch::autograd::Engine::get_default_engine().get_default_saved_variable_hooks();
};

bool packs_result() {
  return packing_result;
}

void Packed::pack(const at::Tensor& tensor, bool is_result) {
  // A number in an expression belongs to its node alone, here as in torch.
  hooks_.push_back(
      tensor.unsafeGetTensorImpl()->is_wrapped_number() ? nullptr : saved_hooks_for_node());
  if (hooks_.back() == nullptr) {
    return;
  }
  const auto version = [&] { return tensor.is_inference() ? 0 : tensor._version(); };
  const int64_t before = version();
  {
    at::NoGradGuard no_grad;
    const auto outside = std::exchange(packing_result, is_result);
    const auto put_back = c10::make_scope_exit([&] { packing_result = outside; });
    hooks_.back()->call_pack_hook(tensor);
  }
  if (version() != before) {
    raise(
        "a pack hook of saved_tensors_hooks has written in place to the tensor that it was passed, "
        "which other code may read. Write to a clone.");
  }
}

void Packed::let_go(Args& values) {
  change_tensors(values, values.size(), [this](const at::Tensor& tensor, size_t) {
    return hooks_[let_go_++] != nullptr ? stand_in() : tensor;
  });
}

void Packed::unpack(Args& args, Args& results, int64_t level) const {
  auto next = hooks_.begin();
  const auto found = [&](const at::Tensor& tensor, size_t) {
    const auto& hooks = *next++;
    return hooks != nullptr ? unwrap(hooks->call_unpack_hook(), level) : tensor;
  };
  change_tensors(args, args.size(), found);
  change_tensors(results, results.size(), found);
}

} // namespace torchlayers
