#include "dispatch/set_data.h"

#include "core/errors.h"
#include "values/functional.h"
#include "values/view_roots.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

void refuse_wrapper(const at::Tensor& tensor) {
  const auto* wrapper = wrapper_of(tensor);
  const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
  if (wrapper == nullptr && batched == nullptr) {
    return;
  }
  raise(
      "`x.data = y` makes x use the memory of y, but a tensor of {} has no memory of its own. Call "
      "a module with other tensors with functional_call; run code that replaces a module's tensors "
      "(the first call of a lazy module, `module.to(...)`) before the transform.",
      wrapper != nullptr ? "grad or jvp" : "vmap");
}

// A functional tensor would lose its place in the graphs of the levels below.
void refuse_functional(const at::Tensor& tensor) {
  const auto* functional = functional_of(tensor);
  if (functional != nullptr && has_history(functional->value(), /*at_all_levels=*/true)) {
    refuse_wrapper(functional->value());
  }
}

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  refuse_wrapper(self);
  refuse_wrapper(from);
  refuse_functional(self);
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

} // namespace

void register_data(torch::Library& on_front) {
  on_front.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

} // namespace torchlayers
