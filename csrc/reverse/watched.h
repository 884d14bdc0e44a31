// Hooks on nodes and on tensors, in a pass of ours.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace torchlayers {

// Whether a hook of any kind is on the node, or on a tensor that it has made.
inline bool is_watched(torch::autograd::Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

// The same of a leaf: one on its tensor. Those on the node itself see what is accumulated, which
// nothing is.
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

// The hooks on a leaf; returns its gradient as they leave it.
at::Tensor call_hooks_of_leaf(torch::autograd::Node& leaf, at::Tensor gradient);

// Of these, those that a leaf calls when its gradient has been accumulated, and that the engine
// leaves out where it only returns gradients. They find it in .grad, and what they leave there is
// the gradient.
at::Tensor call_hooks_of_accumulated(const at::Tensor& leaf, at::Tensor gradient);

} // namespace torchlayers
