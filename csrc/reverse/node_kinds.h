// Distinguishes the nodes of autograd's graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "core/torch_versions.h"

namespace torchlayers {

// The tensor whose gradients this node accumulates; null if it is another kind of node.
const at::Tensor* leaf_of(const torch::autograd::Node& node);

template <class Change>
void change_defined(std::vector<at::Tensor>& tensors, const Change& change) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      tensor = change(tensor);
    }
  }
}

// Puts a new node into the kind of smart pointer that torch holds its own nodes by.
template <class NodeType>
NodePointer<NodeType> own_node(NodeType* node) {
  if constexpr (std::is_same_v<NodePointer<NodeType>, std::shared_ptr<NodeType>>) {
    return std::shared_ptr<NodeType>(node, [](NodeType* owned) { deleteNode(owned); });
  } else {
    return c10::intrusive_ptr<NodeType>::unsafe_steal_from_new(node);
  }
}

// Whether it is the node of a Python autograd.Function.
bool is_python_function(const torch::autograd::Node& node);

} // namespace torchlayers
