// In its own file, because torch's header brings in names that clash with functorch's.
#include "reverse/node_kinds.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstring>
#include <typeinfo>

namespace torchlayers {

const at::Tensor* leaf_of(const torch::autograd::Node& node) {
  if (node.num_outputs() != 0) {
    return nullptr;
  }
  const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
  return leaf == nullptr ? nullptr : &leaf->variable;
}

// torch does not export the type, but its name identifies it.
bool is_python_function(const torch::autograd::Node& node) {
  return std::strstr(typeid(node).name(), "PyNode") != nullptr;
}

} // namespace torchlayers
