#include "layers/functionalize/history.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/args.h"
#include "core/modes.h"
#include "core/saved_stack.h"
#include "core/stack.h"
#include "layers/custom.h"
#include "layers/functionalize/views.h"
#include "values/batched.h"
#include "values/history.h"
#include "values/view_roots.h"
#include "values/wrapper.h"
#include "values/wrapper_chain.h"

namespace torchlayers {
namespace {

using at::Tensor;
using at::functionalization::FunctionalStorageImpl;
namespace functionalization = at::functionalization::impl;

class UnrecordedView final : public ReplayedView {
 public:
  using ReplayedView::ReplayedView;

  Tensor forward(const Tensor& base) override {
    const at::AutoGradMode off(false);
    return of_torch().forward(base);
  }
  Tensor reverse(const Tensor& base, const Tensor& written) override {
    return of_torch().reverse(base, written);
  }
};

void replay(const Tensor& functional) {
  const at::AutoGradMode on(true);
  functionalization::sync(functional);
}

FunctionalStorageImpl& memory_of_functional(const Tensor& tensor) {
  return static_cast<FunctionalStorageImpl&>(*tensor.storage().unsafeGetStorageImpl());
}

// The layer in Python that one of the tensors belongs to, or null.
const CustomLayer* custom_layer_of(const Tensor& one, const Tensor& other) {
  for (const Tensor& each : {one, other}) {
    if (is_of_custom_layer(each)) {
      return dynamic_cast<const CustomLayer*>(layer_at(*wrapper_of(each)->level()));
    }
  }
  return nullptr;
}

Tensor detached_values(const Tensor& other, const Tensor& values) {
  const Tensor numbers = without_graphs(values);
  const bool is_batched_alike = (batched_levels(numbers) & ~batched_levels(other)).none();
  const at::AutoGradMode on(true);
  const Tensor batched = is_batched_alike ? other : other + at::zeros_like(numbers);
  return History(batched, /*kept_at=*/-1, /*keeps_tangents=*/true).given_to(numbers, mirror());
}

// By a write to a copy under no_grad, which the layers below process as any other.
Tensor unrecorded_values(const Tensor& other, const Tensor& values) {
  Tensor copy;
  {
    const at::AutoGradMode on(true);
    copy = other + at::zeros_like(values); // batched as the values are
  }
  const at::AutoGradMode off(false);
  return copy.copy_(values);
}

} // namespace

Unrecorded::Unrecorded(const Operator& op, const Args& args, int64_t level)
    : op_(op), level_(level) {
  visit_tensors(args, op.num_args, [&](const Tensor& tensor, size_t i) {
    if (!is_functional(tensor)) {
      return;
    }
    replay(tensor);
    viewed_.push_back(tensor);
    const bool is_written = std::ranges::find(op.written_args, i) != op.written_args.end();
    if (is_written && !op.detaches_in_place && !op.handle.hasTag(at::Tag::inplace_view)) {
      const Tensor before = memory_of_functional(tensor).base();
      if (may_have_history(before)) {
        written_.push_back({tensor, before});
      }
    }
  });
}

void Unrecorded::finish(const Args& results) const {
  for (const auto& [tensor, before] : written_) {
    functionalization::sync(tensor);
    auto& memory = memory_of_functional(tensor);
    const Tensor after = memory.base();
    if (after.is_same(before) || after.sizes() != before.sizes()) {
      continue;
    }
    const BelowLevel below(level_);
    memory.add_update(with_history_of(before, after, /*is_detached=*/false), {});
    replay(tensor);
  }
  if (!op_.aliases || !op_.written_args.empty() || op_.detaches) {
    return;
  }
  visit_tensors(results, op_.num_returns, [&](const Tensor& result) {
    const bool is_given =
        std::ranges::any_of(viewed_, [&](const Tensor& each) { return each.is_same(result); });
    if (!is_given && is_functional(result)) {
      auto& views = views_of(*functionalization::unsafeGetFunctionalWrapper(result));
      if (!views.empty()) {
        views.back() = std::make_shared<UnrecordedView>(views.back());
      }
    }
  });
}

bool may_have_history(const Tensor& tensor) {
  return is_of_custom_layer(tensor) || has_history(tensor, /*at_all_levels=*/true);
}

Tensor with_history_of(const Tensor& other, const Tensor& values, bool is_detached) {
  if (const CustomLayer* layer = custom_layer_of(other, values)) {
    return layer->rewritten(other, values, is_detached);
  }
  if (!may_have_history(other) && !(is_detached && may_have_history(values))) {
    return values;
  }
  return is_detached ? detached_values(other, values) : unrecorded_values(other, values);
}

} // namespace torchlayers
