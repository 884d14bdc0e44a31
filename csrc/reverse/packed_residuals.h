// The tensors that a node saves, packed by saved-tensor hooks.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <vector>

#include "core/operator.h"

namespace torchlayers {

// Whether the tensor that a hook is called with on this thread is a result of the operator that
// saves it; else it is an argument, and the operator has not run yet.
bool packs_result();

// The active hooks, for one tensor of a node; null if there are none. Set from Python.
extern std::unique_ptr<torch::autograd::SavedVariableHooks> (*saved_hooks_for_node)();

class Packed {
 public:
  // Calls the active hooks with a tensor that is saved. NOTE [Where a hook runs].
  void pack(const at::Tensor& tensor, bool is_result);

  // Releases those of the tensors among these values that hooks have packed. The values are in the
  // order of `pack`.
  void let_go(std::vector<c10::IValue>& values);

  // Puts the tensors that the hooks return in their places, as values of the layers below.
  void unpack(
      std::vector<c10::IValue>& args, std::vector<c10::IValue>& results, int64_t level) const;

 private:
  std::vector<std::unique_ptr<torch::autograd::SavedVariableHooks>> hooks_; // per tensor, or null
  size_t let_go_ = 0;
};

} // namespace torchlayers
