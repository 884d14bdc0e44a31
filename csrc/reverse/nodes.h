// Telling the nodes of autograd's graph apart.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

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

// Whether it is an autograd.Function of Python's.
bool is_python_function(const torch::autograd::Node& node);

} // namespace torchlayers
