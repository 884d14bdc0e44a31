// x.requires_grad and x.requires_grad_() in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// NOTE [Gradients inside]
// A function that differentiates on its own (torch.autograd.grad of x.detach().requires_grad_(),
// as implicit solvers do) may run inside a transform. torch refuses requires_grad_() there. Inside
// our layers it goes to torchlayers/local_gradients.py instead, which marks the tensor at the level
// whose autograd records it: a wrapper at its own, a batched or functional tensor at that of the
// value in it, which is also where torch.autograd.grad then runs, and what x.requires_grad tells
// of. All else, and all where no layer is on, is left to torch's own.

// Puts ours before torch's, for good.
void stand_before_requires_grad();

void bind_requires_grad(pybind11::module_& m);

} // namespace torchlayers
