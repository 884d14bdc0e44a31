// Hooks on nodes and tensors, in our reverse pass.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace torchlayers {

// Whether a hook of any kind is on the node, or on a tensor that it has made.
inline bool is_watched(torch::autograd::Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

// The same for a leaf: whether a hook is on its tensor. Hooks on the node itself see what is
// accumulated, and here nothing is.
inline bool is_watched_leaf(torch::autograd::Node& leaf) {
  return !leaf.tensor_pre_hooks().empty() || leaf.tensor_post_acc_grad_hooks() != nullptr;
}

// In the engine's order: hooks on the tensors that the node has made, then retained gradients, then
// hooks before the node. Each may change the cotangents.
void call_hooks_before(torch::autograd::Node& node, torch::autograd::variable_list& cotangents);

// The hooks after the node, which may change its gradients.
void call_hooks_after(
    torch::autograd::Node& node,
    torch::autograd::variable_list& gradients,
    const torch::autograd::variable_list& cotangents);

// Calls the hooks on a leaf; returns its gradient as they leave it.
at::Tensor call_hooks_of_leaf(torch::autograd::Node& leaf, at::Tensor gradient);

// Calls only those hooks of a leaf that are called when its gradient has been accumulated, and that
// the engine skips when it only returns gradients. They find the gradient in .grad, and the tensor
// that they leave there becomes the gradient.
at::Tensor call_hooks_of_accumulated(const at::Tensor& leaf, at::Tensor gradient);

} // namespace torchlayers
