// What a call of a module comes to.
#pragma once

#include <Python.h>

namespace torchlayers::modules {

// module(*args, **kwargs), a new reference, or nullptr with Python's error set. kwargs may be
// nullptr.
//
// nn.Module.__call__ asks whether there are hooks, and calls forward where there are none. Asked in
// Python, that takes as long as a small operator, and so it is asked here, of the module and of
// those in an nn.Sequential; any other module calls its own children.
PyObject* call_of(PyObject* module, PyObject* args, PyObject* kwargs);

} // namespace torchlayers::modules
