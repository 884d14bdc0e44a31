#include "dispatch/set_data.h"

#include "core/errors.h"
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

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  refuse_wrapper(self);
  refuse_wrapper(from);
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

} // namespace

void register_data(torch::Library& on_front) {
  on_front.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

} // namespace torchlayers
