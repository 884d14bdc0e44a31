#include "reverse/node_hooks.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "reverse/node_kinds.h"

namespace torchlayers {

using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// A hook may register others, which are not called this time.
template <class Hooks>
void call_in_turn(const Hooks& hooks, variable_list& values) {
  for (size_t i = 0, count = hooks.size(); i < count && i < hooks.size(); ++i) {
    values = (*hooks[i])(values);
  }
}

} // namespace

void call_hooks_before(Node& node, variable_list& cotangents) {
  call_in_turn(node.tensor_pre_hooks(), cotangents);
  for (const auto& [place, hook] : node.retains_grad_hooks()) {
    cotangents = (*hook)(cotangents);
  }
  call_in_turn(node.pre_hooks(), cotangents);
}

void call_hooks_after(Node& node, variable_list& gradients, const variable_list& cotangents) {
  const auto& hooks = node.post_hooks();
  for (size_t i = 0, count = hooks.size(); i < count && i < hooks.size(); ++i) {
    gradients = (*hooks[i])(gradients, cotangents);
  }
}

at::Tensor call_hooks_of_leaf(Node& leaf, at::Tensor gradient) {
  variable_list gradients{std::move(gradient)};
  call_in_turn(leaf.tensor_pre_hooks(), gradients);
  return call_hooks_of_accumulated(*leaf_of(leaf), std::move(gradients.front()));
}

at::Tensor call_hooks_of_accumulated(const at::Tensor& leaf, at::Tensor gradient) {
  const auto& hook = torch::autograd::impl::post_acc_grad_hooks(leaf);
  if (hook == nullptr || !gradient.defined()) {
    return gradient;
  }
  at::Tensor& held = leaf.mutable_grad();
  const at::Tensor before = std::exchange(held, std::move(gradient));
  const auto put_back = c10::make_scope_exit([&] { held = before; });
  (*hook)(leaf);
  return std::move(held);
}

} // namespace torchlayers
