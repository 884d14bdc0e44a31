#include "values/functional.h"

#include <algorithm>
#include <optional>

#include "core/saved_stack.h"
#include "core/stack.h"

namespace torchlayers {
namespace {

// While it lives, the thread's stack ends below the functional tensor's layer, and operators reach
// it with the dispatch keys of whoever called the layer on top.
class BelowLevel {
 public:
  explicit BelowLevel(int64_t level) : keys_(thread_keys()) {
    const Layer* layer = top_layer();
    if (const auto* processing = layer != nullptr ? Processing::of(*layer) : nullptr) {
      thread_keys() = processing->keys_outside();
    }
    const auto first = mirror().begin();
    const auto count = std::clamp<int64_t>(level - 1, 0, static_cast<int64_t>(mirror().size()));
    below_.emplace(StackCopy(first, first + count), /*records=*/true);
  }
  ~BelowLevel() {
    below_.reset();
    thread_keys() = keys_;
  }
  BelowLevel(const BelowLevel&) = delete;
  BelowLevel& operator=(const BelowLevel&) = delete;

 private:
  c10::impl::PODLocalDispatchKeySet keys_;
  std::optional<OnSavedStack> below_;
};

} // namespace

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
