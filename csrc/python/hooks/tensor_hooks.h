// Hooks that a function inside transforms registers on tensors and modules.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "layers/hook_level.h"

namespace torchlayers {

// A user's hook on a value that is batched by vmaps. NOTE [Hooks under vmap]. It is called with
// gradients, or tuples of them, of the level that tracks the value, and returns what the hook
// returns.
struct PlacedHook {
  pybind11::object hook;
  HookPlace place;

  pybind11::object operator()(const pybind11::args& given) const;
};

} // namespace torchlayers
