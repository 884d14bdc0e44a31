// A module's backward hooks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layers/level_views.h"

namespace torchlayers {

// Views of the inputs of a torch.nn.Module with backward hooks, or of its outputs, which share one
// node; the module registers its hooks on that. torch makes them with an autograd.Function for
// plain autograd. Our node is at the highest level that records any of the tensors; tensors that
// this level does not record are returned unchanged.
struct BehindOneNode {
  std::vector<at::Tensor> tensors;
  at::Tensor recorded;     // one at the node's level; undefined if none is recorded
  std::vector<Hold> holds; // how the tensors are held, from that level
};

BehindOneNode behind_one_node(const std::vector<at::Tensor>& tensors);

} // namespace torchlayers
