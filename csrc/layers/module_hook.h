// A module's backward hooks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layers/inner_levels.h"

namespace torchlayers {

// What torch.nn.Module puts around what goes into a module that has backward hooks, and around what
// comes out: views of the tensors, with one node for all of them, on which it registers. torch's
// own are of an autograd.Function that is made for plain autograd. The node is at the highest level
// that records any of the tensors; what that level does not record is returned as it is.
struct BehindOneNode {
  std::vector<at::Tensor> tensors;
  at::Tensor recorded;     // one of the node's own level; undefined where nobody records any
  std::vector<Hold> holds; // of the tensors by that level
};

BehindOneNode behind_one_node(const std::vector<at::Tensor>& tensors);

} // namespace torchlayers
