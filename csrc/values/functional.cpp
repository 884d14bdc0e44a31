#include "values/functional.h"

#include "core/saved_stack.h"

namespace torchlayers {

const at::FunctionalTensorWrapper* functional_of(const at::Tensor& tensor) {
  if (!at::functionalization::impl::isFunctionalTensor(tensor)) {
    return nullptr;
  }
  const auto* wrapper = at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
  if (!wrapper->is_up_to_date()) {
    const BelowLevel below(wrapper->level());
    at::functionalization::impl::sync(tensor);
  }
  return wrapper;
}

} // namespace torchlayers
