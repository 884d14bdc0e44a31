#include "values/history.h"

#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include "core/stack.h"
#include "core/torch_versions.h"
#include "values/batched.h"
#include "values/functional.h"
#include "values/rewrap.h"
#include "values/tangent.h"
#include "values/without_strides.h"
#include "values/wrapper.h"
#include "values/wrapper_chain.h"

namespace torchlayers {
namespace {

namespace impl = torch::autograd::impl;

// Removes the wrappers of levels above this one, and those of layers that have ended.
const at::Tensor& lowered(const at::Tensor& tensor, int64_t level) {
  const auto* wrapper = wrapper_of(tensor);
  if (wrapper == nullptr || wrapper->level().value_or(level + 1) <= level) {
    return tensor;
  }
  return lowered(wrapper->value(), level);
}

// A node without a next one. reverse/node_kinds.h makes nodes that are run.
template <class NodeType>
torch::autograd::Edge end_of_graph() {
  if constexpr (std::is_same_v<NodePointer<NodeType>, std::shared_ptr<NodeType>>) {
    return {std::make_shared<NodeType>(), 0};
  } else {
    return {c10::make_intrusive<NodeType>(), 0};
  }
}

} // namespace

History::History(const at::Tensor& tensor, int64_t kept_at, bool keeps_tangents) {
  at::Tensor rest = tensor;
  for (bool is_last = false; !is_last;) {
    Level level{Kind::Plain, 0, {}, {}};
    at::Tensor inner;
    if (is_of_custom_layer(rest)) { // its parts can't be taken off and put on again
      level.kind = Kind::Custom;
      level.level = *wrapper_of(rest)->level();
      level.whole = rest;
      is_last = true;
    } else if (const auto* wrapper = wrapper_of(rest)) {
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
    } else if (const auto* batched = at::functorch::maybeGetBatchedImpl(rest)) {
      inner = batched->value();
      level.kind = Kind::Batched;
      level.level = batched->level();
    } else if (const auto* functional = functional_of(rest)) {
      inner = functional->value();
      level.kind = Kind::Functional;
      level.level = functional->level();
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
    // A tangent ends with its dual level.
    const bool has_tangent = level.tangent.defined() &&
                             torch::autograd::ForwardADLevel::try_get_by_idx(kDualLevel) != nullptr;
    if (level.place.is_valid() || has_tangent) {
      tensor = placed(tensor, level.place);
    }
    if (has_tangent) {
      tensor._set_fw_grad(level.tangent, kDualLevel, /*is_inplace_op=*/false);
    }
    return tensor;
  }
  if (level.kind == Kind::Custom) {
    return level.whole;
  }
  const auto* functional = level.kind == Kind::Functional ? functional_of(tensor) : nullptr;
  // A tensor of a layer that had ended, or was in its reverse pass, when it was packed.
  if (static_cast<size_t>(level.level) > stack.size() && level.kind != Kind::Batched) {
    const at::Tensor& inner =
        functional == nullptr ? lowered(tensor, level.level - 1) : functional->value();
    return given_to(inner, stack, i + 1);
  }
  const auto& entry = stack.at(static_cast<size_t>(level.level - 1));
  if (level.kind == Kind::Batched) {
    const auto* batched = at::functorch::maybeGetBatchedImpl(tensor);
    return batched == nullptr // the same for all samples
               ? given_to(tensor, stack, i + 1)
               : batched_again(given_to(batched->value(), stack, i + 1), batched->bdim(), entry);
  }
  if (level.kind == Kind::Functional) {
    return made_functional(
        given_to(functional == nullptr ? tensor : functional->value(), stack, i + 1), level.level);
  }
  const auto* wrapper = wrapper_of(tensor);
  const bool is_of_level = wrapper != nullptr && wrapper->level() == level.level;
  at::Tensor tangent = level.tangent;
  if (level.remade != nullptr && is_of_level) {
    tangent = tangent_of(tensor, level.level);
    tangent = tangent.defined() ? level.remade->given_to(tangent, stack) : tangent;
  }
  tensor = wrapper_around(
      given_to(is_of_level ? wrapper->value() : tensor, stack, i + 1), entry.interpreter());
  if (tangent.defined()) {
    give_tangent(tensor, std::move(tangent));
  }
  if (level.place.is_valid()) {
    impl::set_gradient_edge(tensor, level.place);
  }
  return tensor;
}

void History::cut() {
  for (Level& level : levels_) {
    if (level.place.is_valid()) {
      level.place = end_of_graph<torch::autograd::Identity>();
    }
    if (level.kind == Kind::Plain && level.tangent.defined()) {
      level.tangent = with_graphs_cut(level.tangent);
    }
    if (level.remade != nullptr) {
      level.remade->cut();
    }
  }
}

at::Tensor with_graphs_cut(const at::Tensor& tensor) {
  constexpr int64_t kNone = -1;
  History history(tensor, kNone, /*keeps_tangents=*/false);
  history.cut();
  return history.given_to(without_graphs(tensor), mirror());
}

} // namespace torchlayers
