#include "layers/functionalize/detach.h"

#include <ATen/FunctionalTensorWrapper.h>

#include "layers/functionalize/history.h"
#include "layers/functionalize/views.h"

namespace torchlayers {
namespace {

using at::Tensor;
namespace functionalization = at::functionalization::impl;

class Detached final : public ReplayedView {
 public:
  using ReplayedView::ReplayedView;

  Tensor forward(const Tensor& base) override {
    const Tensor detached = of_torch().forward(base);
    return written_.defined() ? with_history_of(written_, detached, /*is_detached=*/true)
                              : detached;
  }
  Tensor reverse(const Tensor& base, const Tensor& written) override {
    written_ = may_have_history(written) ? written : Tensor();
    return with_history_of(base, of_torch().reverse(base, written), /*is_detached=*/true);
  }

 private:
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
