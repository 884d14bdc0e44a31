// The parts of the extension module torchlayers._C.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchlayers {

// Context managers that enter and leave a layer.
void bind_entries(pybind11::module_& m);
void bind_custom_layers(pybind11::module_& m);
// Unions of index sets, for sparsity detection.
void bind_index_sets(pybind11::module_& m);
// Calls of transforms, and of modules with other tensors.
void bind_calls(pybind11::module_& m);
// watch_steps(modules), and any_step_replaced(transform).
void bind_steps(pybind11::module_& m);
// Queries for operators with rules, and registration of users' rules.
void bind_operators(pybind11::module_& m);

// Saved-tensor hooks, called correctly under layers.
void bind_saved_hooks(pybind11::module_& m);
// Hooks that a function inside transforms registers on tensors and modules.
void bind_tensor_hooks(pybind11::module_& m);
// The state of the CPU's random generator.
void bind_random_state(pybind11::module_& m);
// Saved-tensor hooks of checkpoints.
void bind_checkpoint(pybind11::module_& m);
// Records the Python code that runs.
void bind_ran_code(pybind11::module_& m);
// torchlayers.trace()
void bind_trace(pybind11::module_& m);
// Selects the tensors that are saved within a memory budget.
void bind_budget(pybind11::module_& m);
// Autograd's graph of a function, cut off at the function's inputs.
void bind_cut_graph(pybind11::module_& m);
// Colourings of sparsity patterns.
void bind_coloring(pybind11::module_& m);
// Whether a dual level is active that none of our jvps opened.
void bind_dual_level(pybind11::module_& m);

// TorchScript graphs, differentiated.
namespace graph {
void bind(pybind11::module_& m);
}

// Makes calls of TorchScript functions under layers run operator by operator.
void patch_script_calls();

// Installs the callbacks by which the core calls Python (core/callbacks.h).
void supply_callbacks();
// The same for callbacks about hooks on nodes.
void supply_node_callbacks();

} // namespace torchlayers
