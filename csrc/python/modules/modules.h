// Calls a module with given tensors in place of its own.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// NOTE [Swapping tensors]
// A module reads its tensors in many ways: by attribute, from its `_parameters` and `_buffers`,
// through named_parameters() or state_dict(). All of these read those two dicts, so given tensors
// are put there and nowhere else. (Attribute lookup would find them sooner in an instance's own
// `__dict__`, but then they would miss what a forward writes to the two dicts, which torch.func's
// functional_call handles.)
//
// The dict and key of each name are planned once per module, and each call walks through the module
// to check that its structure is unchanged. The plan holds keys and addresses, never a module: an
// address is compared with that of an object that the module holds now, and never dereferenced.
// Running calls are listed with their threads, and a call that would read another thread's tensors
// raises an error. From putting a tensor in until the original is restored, no bytecode of ours
// runs, so that no Ctrl-C can interrupt it.

// call_module(module, given, args, kwargs, tie_weights, strict, settings): the result of
// functional_call. `settings` are put in besides the tensors: a tuple of (dict, key, value).
//
// run_module(module, func, given, args, kwargs, tie_weights, settings): func(*args, **kwargs) while
// the module has the tensors of the dict `given`, all of which are parameters or buffers.
// Afterwards `given`, and a setting that is a list, hold the values that replaced them in the
// meantime.
//
// with_tensors_put_in(func): func, or a wrapper that calls it with the tensors that are in modules
// now, for recomputation after the calls that put them there.
//
// unplanned_names(module, given) lists the names that are neither a parameter's nor a buffer's.
void bind_modules(pybind11::module_& m);

} // namespace torchlayers
