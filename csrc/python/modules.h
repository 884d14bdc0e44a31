// A module called with given tensors in the place of its own.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// NOTE [Swapping tensors]
// A module reads its tensors wherever it likes: by attribute, from its `_parameters` and
// `_buffers`, through named_parameters() or state_dict(). All of that comes from these two dicts,
// so given tensors are put there and nowhere else. (Python's look-up would find them sooner in an
// instance's own `__dict__`, but would not see what a forward writes to the two dicts, as
// torch.func's functional_call does.)
//
// Which dict and which key a name means is planned once a module, and each call walks through the
// module to see that it is built as it was. The plan holds keys and addresses, never a module: an
// address is compared with that of an object which the module holds now, and not looked into.
// Calls that run are listed with their threads, and one that would meet another thread's tensors is
// refused. The way from a tensor put in to its owner put back runs no byte code of ours, so that no
// Ctrl-C comes between.

// call_module(module, given, args, kwargs, tie_weights, strict, settings): what functional_call
// returns. `settings` are put in besides the tensors: a tuple of (dict, key, value).
//
// run_module(module, func, given, args, kwargs, tie_weights, settings): func(*args, **kwargs) while
// the module has the tensors of the dict `given`, all of which are parameters or buffers. What was
// replaced meanwhile is then in `given`, and in a setting that is a list.
//
// with_tensors_put_in(func): func, or what calls it with the tensors in modules that are in them
// now, after the calls that put them there: for what is recomputed then.
//
// unplanned_names(module, given) lists the names that are neither a parameter's nor a buffer's.
void bind_modules(pybind11::module_& m);

} // namespace torchlayers
