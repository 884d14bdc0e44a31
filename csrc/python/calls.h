// A transform's call as one step, where all that it is given is tensors, or nests of them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// call_vmap, call_grad and call_jvp. Each checks, enters, wraps the arguments, calls the
// function, unwraps its result and leaves; or, before any of that, returns NotImplemented:
// for other pytrees, tensor subclasses, and whatever has to be refused in words. Results that
// are something else are handed to the Python function that the general way uses, in the layer.
void bind_calls(pybind11::module_& m);

} // namespace torchlayers
