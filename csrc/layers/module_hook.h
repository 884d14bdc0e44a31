// A module's backward hooks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchlayers {

// What torch.nn.Module puts around what goes into a module that has backward hooks, and around what
// comes out: views of the tensors, with one node for all of them, on which it registers. torch's
// own are of an autograd.Function that is made for plain autograd. The node is at the highest level
// that records any of the tensors; what that level does not record is returned as it is.
std::vector<at::Tensor> behind_one_node(const std::vector<at::Tensor>& tensors);

} // namespace torchlayers
