// x.requires_grad and x.requires_grad_() in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// Inside our layers these go to torchlayers/transforms/local_gradients.py: NOTE [Gradients inside].
// All other calls, and all calls outside layers, use torch's own.

// Registers our versions as replacements. NOTE [Patches].
void patch_requires_grad();

void bind_requires_grad(pybind11::module_& m);

} // namespace torchlayers
