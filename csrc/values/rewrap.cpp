#include "values/rewrap.h"

#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "core/saved_stack.h"
#include "core/stack.h"
#include "values/batched.h"

namespace torchlayers {

at::Tensor batched_again(
    const at::Tensor& value, int64_t dim, const at::functorch::DynamicLayer& entry) {
  const Layer* layer = owner_of(entry);
  return layer != nullptr ? batched(value, dim, *layer)
                          : at::functorch::makeBatched(value, dim, entry.layerId());
}

at::Tensor placed(const at::Tensor& tensor, const torch::autograd::Edge& place) {
  const bool is_subclass = tensor.key_set().has(c10::DispatchKey::Python);
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_modes;
  std::optional<OnSavedStack> no_layers;
  if (is_subclass) {
    no_layers.emplace(StackCopy()); // the class calls operators itself
  } else {
    no_modes.emplace(c10::DispatchKey::Python);
  }
  return torch::autograd::make_variable(tensor, place);
}

} // namespace torchlayers
