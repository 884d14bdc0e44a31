// What saved-tensor hooks make of the tensors that a node saves.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <vector>

#include "core/operator.h"

namespace torchlayers {

// Whether the tensor that a hook is called with on this thread is a result of the operator that
// saves it; else it is an argument, and the operator has not run yet.
bool packs_result();

// The hooks that are on, for one tensor of a node; null where there are none. Python has them.
extern std::unique_ptr<torch::autograd::SavedVariableHooks> (*saved_hooks_for_node)();

class Packed {
 public:
  // Calls the hooks that are on with a tensor that is saved. NOTE [Where a hook runs].
  void pack(const at::Tensor& tensor, bool is_result);

  // Lets go of those that hooks have packed: of the tensors among these values, in the order of
  // `pack`.
  void let_go(std::vector<c10::IValue>& values);

  // Puts in their places what the hooks give back, as values of the layers below.
  void unpack(
      std::vector<c10::IValue>& args, std::vector<c10::IValue>& results, int64_t level) const;

 private:
  std::vector<std::unique_ptr<torch::autograd::SavedVariableHooks>> hooks_; // a tensor's; or null
  size_t let_go_ = 0;
};

} // namespace torchlayers
