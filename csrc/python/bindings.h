// What the module torchlayers._C is made of.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// The context managers in which a layer is on.
void bind_entries(pybind11::module_& m);
// A call of a transform, and of a module.
void bind_calls(pybind11::module_& m);
// watch_steps(modules), and any_step_replaced(transform).
void bind_steps(pybind11::module_& m);
// Which operators have rules, and users' rules.
void bind_operators(pybind11::module_& m);

// Saved-tensor hooks, called as they should be under layers.
void bind_saved_hooks(pybind11::module_& m);
// Hooks that a function inside transforms puts on tensors and modules.
void bind_tensor_hooks(pybind11::module_& m);
// What the processor's random generator will draw.
void bind_random_state(pybind11::module_& m);
// Those of checkpoints.
void bind_checkpoint(pybind11::module_& m);
// Which Python code runs.
void bind_ran_code(pybind11::module_& m);
// What is kept within a memory budget.
void bind_budget(pybind11::module_& m);
// Autograd's graph of a function, without what hangs on its inputs.
void bind_cut_graph(pybind11::module_& m);
// Whether a dual level is on that no jvp of ours opened.
void bind_dual_level(pybind11::module_& m);

// Has calls of TorchScript under layers run operator by operator.
void stand_before_script_calls();

// Lets the core ask Python (core/hooks.h).
void supply_hooks();
// The same about hooks on nodes.
void supply_hooks_on_nodes();

} // namespace torchlayers
