#include "values/history.h"

#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "core/stack.h"
#include "values/batched.h"
#include "values/tangent.h"
#include "values/wrapper.h"

namespace torchlayers {
namespace {

using at::functorch::maybeGetBatchedImpl;
namespace impl = torch::autograd::impl;

// Without the wrappers of levels above this one, and those of layers that have ended.
const at::Tensor& lowered(const at::Tensor& tensor, int64_t level) {
  const auto* wrapper = wrapper_of(tensor);
  if (wrapper == nullptr || wrapper->level().value_or(level + 1) <= level) {
    return tensor;
  }
  return lowered(wrapper->value(), level);
}

at::Tensor batched_again(
    const at::Tensor& value, int64_t dim, const at::functorch::DynamicLayer& entry) {
  const Layer* layer = owner_of(entry);
  return layer != nullptr ? batched(value, dim, *layer)
                          : at::functorch::makeBatched(value, dim, entry.layerId());
}

// A plain tensor's numbers at that place. A mode that is on is not to see a detach.
at::Tensor placed(const at::Tensor& tensor, const torch::autograd::Edge& place) {
  const bool is_subclass = tensor.key_set().has(c10::DispatchKey::Python);
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_modes;
  if (!is_subclass) {
    no_modes.emplace(c10::DispatchKey::Python);
  }
  return torch::autograd::make_variable(tensor, place);
}

} // namespace

History::History(const at::Tensor& tensor, int64_t kept_at, bool keeps_tangents) {
  at::Tensor rest = tensor;
  for (bool is_last = false; !is_last;) {
    Level level{Kind::Plain, 0, {}, {}};
    at::Tensor inner;
    if (const auto* wrapper = wrapper_of(rest)) {
      inner = wrapper->value();
      if (!wrapper->is_alive()) {
        rest = std::move(inner);
        continue;
      }
      level.kind = Kind::Wrapped;
      level.level = *wrapper->level();
      const at::Tensor tangent = tangent_of(rest, level.level);
      if (keeps_tangents) {
        level.tangent = tangent;
      } else if (tangent.defined()) {
        level.remade = std::make_shared<History>(tangent, kept_at, false);
      }
    } else if (const auto* batched = maybeGetBatchedImpl(rest)) {
      inner = batched->value();
      level.kind = Kind::Batched;
      level.level = batched->level();
    } else {
      level.tangent = rest._fw_grad(kDualLevel);
      is_last = true;
    }
    if (level.level != kept_at && rest.requires_grad()) {
      level.place = impl::gradient_edge(rest);
    }
    levels_.push_back(std::move(level));
    rest = std::move(inner);
  }
}

at::Tensor History::given_to(const at::Tensor& numbers, const StackCopy& stack, size_t i) const {
  const Level& level = levels_[i];
  at::Tensor tensor = lowered(numbers, level.level);
  if (level.kind == Kind::Plain) {
    if (level.place.is_valid() || level.tangent.defined()) {
      tensor = placed(tensor, level.place);
    }
    if (level.tangent.defined()) {
      tensor._set_fw_grad(level.tangent, kDualLevel, /*is_inplace_op=*/false);
    }
    return tensor;
  }
  const auto& entry = stack[static_cast<size_t>(level.level - 1)];
  if (level.kind == Kind::Batched) {
    const auto* batched = maybeGetBatchedImpl(tensor);
    return batched == nullptr // alike for all samples
               ? given_to(tensor, stack, i + 1)
               : batched_again(given_to(batched->value(), stack, i + 1), batched->bdim(), entry);
  }
  const auto* wrapper = wrapper_of(tensor);
  const bool is_of_level = wrapper != nullptr && wrapper->level() == level.level;
  at::Tensor tangent = level.tangent;
  if (level.remade != nullptr && is_of_level) {
    tangent = tangent_of(tensor, level.level);
    tangent = tangent.defined() ? level.remade->given_to(tangent, stack) : tangent;
  }
  tensor = at::functorch::makeTensorWrapper(
      given_to(is_of_level ? wrapper->value() : tensor, stack, i + 1), entry.interpreter());
  if (tangent.defined()) {
    give_tangent(tensor, std::move(tangent));
  }
  if (level.place.is_valid()) {
    impl::set_gradient_edge(tensor, level.place);
  }
  return tensor;
}

at::Tensor without_graphs(const at::Tensor& tensor) {
  if (const auto* wrapper = wrapper_of(tensor)) {
    if (!wrapper->is_alive()) {
      return without_graphs(wrapper->value());
    }
    const int64_t level = *wrapper->level();
    const auto& entry = mirror()[static_cast<size_t>(level - 1)];
    at::Tensor result =
        at::functorch::makeTensorWrapper(without_graphs(wrapper->value()), entry.interpreter());
    if (const at::Tensor tangent = tangent_of(tensor, level); tangent.defined()) {
      give_tangent(result, without_graphs(tangent));
    }
    return result;
  }
  if (const auto* batched = maybeGetBatchedImpl(tensor)) {
    const auto& entry = mirror()[static_cast<size_t>(batched->level() - 1)];
    return batched_again(without_graphs(batched->value()), batched->bdim(), entry);
  }
  const at::Tensor& tangent = tensor._fw_grad(kDualLevel);
  if (!tensor.requires_grad() && !tangent.defined()) {
    return tensor;
  }
  at::Tensor result = placed(tensor, {});
  if (tangent.defined()) {
    result._set_fw_grad(without_graphs(tangent), kDualLevel, /*is_inplace_op=*/false);
  }
  return result;
}

} // namespace torchlayers
