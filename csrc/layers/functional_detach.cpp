#include "layers/functional_detach.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/autograd/variable.h>

#include "core/stack.h"
#include "layers/functional_views.h"
#include "values/batched.h"
#include "values/history.h"
#include "values/tangent.h"
#include "values/view_roots.h"
#include "values/wrapper.h"
#include "values/wrapper_chain.h"

namespace torchlayers {
namespace {

using at::Tensor;
using at::functionalization::ViewMeta;
namespace functionalization = at::functionalization::impl;

// These values with the history of another tensor, at all levels.
Tensor with_history_of(const Tensor& other, const Tensor& values) {
  if (!has_history(other, /*at_all_levels=*/true) && !has_history(values, /*at_all_levels=*/true)) {
    return values;
  }
  const Tensor numbers = without_graphs(values);
  const bool is_batched_alike = (batched_levels(numbers) & ~batched_levels(other)).none();
  const Tensor batched = is_batched_alike ? other : other + at::zeros_like(numbers);
  return History(batched, /*kept_at=*/-1, /*keeps_tangents=*/true).given_to(numbers, mirror());
}

class Detached final : public ViewMeta {
 public:
  explicit Detached(std::shared_ptr<ViewMeta> of_torch)
      : ViewMeta(/*has_symbolic_inputs=*/false), of_torch_(std::move(of_torch)) {}

  Tensor forward(const Tensor& base) override {
    const Tensor detached = of_torch_->forward(base);
    return written_.defined() ? with_history_of(written_, detached) : detached;
  }
  Tensor reverse(const Tensor& base, const Tensor& written) override {
    written_ = has_history(written, /*at_all_levels=*/true) ? written : Tensor();
    return with_history_of(base, of_torch_->reverse(base, written));
  }

 private:
  std::shared_ptr<ViewMeta> of_torch_;
  Tensor written_; // if it has a history, which is the view's from then on
};

} // namespace

void detach_functional(const Tensor& result) {
  auto& views = views_of(*functionalization::unsafeGetFunctionalWrapper(result));
  if (!views.empty()) {
    views.back() = std::make_shared<Detached>(views.back());
  }
}

} // namespace torchlayers
