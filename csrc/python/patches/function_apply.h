// autograd.Function.apply, where torch has it in C: since torch 2.15.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// patch_function_apply(make): registers make(torch's apply) in its place, for threads that have a
// layer. Does nothing where apply is a Python function, whose code can be replaced.
// leads_to_front(forward, operands): whether all that torch's apply does comes down to our front
// key's rule with the same operands.
void bind_function_apply(pybind11::module_& m);

} // namespace torchlayers
