// Hooks that a function inside transforms puts on tensors and modules.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "layers/hook_place.h"

namespace torchlayers {

// A user's hook, on a value that vmaps hold. NOTE [Hooks under vmap]. It is called with gradients
// of the level that records the value, or with tuples of them, and returns what the hook does.
struct PlacedHook {
  pybind11::object hook;
  HookPlace place;

  pybind11::object operator()(const pybind11::args& given) const;
};

} // namespace torchlayers
