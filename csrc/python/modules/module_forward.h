// Calls a module, directly by its forward if it has no hooks.
#pragma once

#include <Python.h>

namespace torchlayers::modules {

// module(*args, **kwargs): a new reference, or nullptr with Python's error set. kwargs may be
// nullptr.
//
// nn.Module.__call__ checks for hooks, and calls forward if there are none. In Python, that check
// takes as long as a small operator, so it is done here, for the module and for those in an
// nn.Sequential.
PyObject* call_of(PyObject* module, PyObject* args, PyObject* kwargs);

// NOTE [Shorter calls of modules]
// Any other module calls its children by nn.Module.__call__, and finds its parameters by
// nn.Module.__getattr__, which take 10,000 and 6,700 instructions. An interpreter calls a Python
// function from C, as it does for these two, by a pointer in the function, which is replaced (NOTE
// [Patches]): the functions stay the objects that torch defined, with their code, to everybody who
// compares, replaces or wraps them. While a functional_call runs the pointers lead to the same
// check and the same look-up as above; else, under a profiler, or if anything is out of the
// ordinary (a hook, a dict of another type, a name that is not found), to torch's code.
void patch_calls();

} // namespace torchlayers::modules
