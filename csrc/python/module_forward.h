// Calls a module, directly by its forward if it has no hooks.
#pragma once

#include <Python.h>

namespace torchlayers::modules {

// module(*args, **kwargs): a new reference, or nullptr with Python's error set. kwargs may be
// nullptr.
//
// nn.Module.__call__ checks for hooks, and calls forward if there are none. In Python, that check
// takes as long as a small operator, so it is done here, for the module and for those in an
// nn.Sequential; any other module calls its children itself.
PyObject* call_of(PyObject* module, PyObject* args, PyObject* kwargs);

} // namespace torchlayers::modules
