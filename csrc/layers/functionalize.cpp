#include "layers/functionalize.h"

#include <ATen/FunctionalTensorWrapper.h>

#include "core/args.h"
#include "core/errors.h"
#include "core/keys.h"
#include "core/stack.h"
#include "core/trace.h"
#include "values/escaped.h"
#include "values/wrapper.h"

namespace torchlayers {

namespace functionalization = at::functionalization::impl;

at::functorch::DynamicLayer FunctionalizeLayer::mirrored(int64_t level) const {
  return at::functorch::DynamicLayer(
      at::functorch::TransformType::Functionalize,
      level,
      std::nullopt,
      std::nullopt,
      std::nullopt,
      std::nullopt,
      keeps_views_);
}

void FunctionalizeLayer::switch_on() {
  // Between two of them another layer has to wrap what the outer one made functional.
  if (!mirror().empty() && mirror().back().key() == at::functorch::TransformType::Functionalize) {
    raise(
        "functionalize can't be applied directly inside functionalize: what is functional already "
        "(level {}) can't be made so again. Apply it once.",
        mirror().back().layerId());
  }
}

void FunctionalizeLayer::process(const Operator& op, Args& args) {
  unwrap_dead_and_check(op, args, *this);
  const DispatchKeySet own(DispatchKey::Functionalize);
  allow_only(own, /*include=*/own); // the kernels pass on what is not functional
  functionalization::FunctionalizationReapplyViewsGuard keep_views(keeps_views_);
  op.handle.callBoxed(&args);
  visit_tensors(args, op.num_returns, [this](const at::Tensor& tensor) {
    if (functionalization::isFunctionalTensor(tensor)) {
      functionalization::unsafeGetFunctionalWrapper(tensor)->set_level(level());
      add_front_key(tensor);
    }
  });
}

bool FunctionalizeLayer::follows(const at::Tensor& tensor) const {
  return functionalization::isFunctionalTensor(tensor);
}

void FunctionalizeLayer::send_down(const Operator& op, Args& args) {
  trace("send_down", op, *this);
  call_below(op, args, /*are_plain=*/false);
}

} // namespace torchlayers
