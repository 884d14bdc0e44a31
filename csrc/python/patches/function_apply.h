// autograd.Function.apply, where torch has it in C: since torch 2.15.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// patch_function_apply(make): registers make(torch's apply) in its place, for threads that have a
// layer. Does nothing where apply is a Python function, whose code can be replaced.
void bind_function_apply(pybind11::module_& m);

} // namespace torchlayers
