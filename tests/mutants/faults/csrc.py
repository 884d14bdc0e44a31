"""Faults in csrc, except for its rules."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "levels_stay_alive",
        "csrc/core/saved_stack.cpp",
        "    *changed->is_alive = changed->was_alive;\n",
        "",
        "a leaked level: after a hook, tensors of a transform that has ended count as alive",
        "tests/core/test_escaped.py tests/rules/reverse/test_hooks.py tests/core/test_stack.py",
    ),
    Mutant(
        "stack_left_dirty",
        "csrc/core/stack.cpp",
        "  while (mirror().size() > depth) {\n"
        "    at::functorch::popDynamicLayerAndDeleteMetadata();\n"
        "  }\n"
        "  if (std::uncaught_exceptions() > 0) {",
        "  if (std::uncaught_exceptions() > 0) {",
        "a leaked level: layers that a kernel has not left stay on the stack",
        "tests/core/test_stack.py",
    ),
    Mutant(
        "written_memory_read",
        "csrc/values/local_storages.cpp",
        "  close_memory(tensor, layer_);\n",
        "",
        "a dropped guard: numpy() of a tensor with a value per sample reads the memory of before",
        "tests/in_place_under_vmap tests/errors/test_vmap_values.py tests/errors/test_writes.py",
    ),
    Mutant(
        "written_parts_at_the_start",
        "csrc/values/strided_region.cpp",
        "return elements.as_strided_symint(sizes, strides, place.offset);",
        "return elements.as_strided_symint(sizes, strides, 0);",
        "a write to a part of a tensor goes to its beginning",
        "tests/in_place_under_vmap",
    ),
    Mutant(
        "hooks_of_inputs_early",
        "csrc/reverse/pass.cpp",
        "if (goal.kind == Goal::Input && --waiting_for_[goal.index] == 0) {",
        "if (goal.kind == Goal::Input && --waiting_for_[goal.index] >= 0) {",
        "a hook on an argument is called before all of its gradient has arrived",
        "tests/rules/reverse/test_hooks.py",
    ),
    Mutant(
        "graph_not_released",
        "csrc/reverse/pass.cpp",
        "    if (!task_.retain_graph) {\n      step.node->release_variables();\n    }\n",
        "",
        "a reverse pass keeps the values that it has used",
        "tests/rules/reverse/test_repeated_backward.py tests/rules/reverse/test_pass.py "
        "tests/transforms/test_vjp.py",
    ),
    Mutant(
        "no_grad_outside_ignored",
        "csrc/layers/grad.cpp",
        "return {here.grad && previous_grad_mode_, here.forward_grad};",
        "return {here.grad, here.forward_grad};",
        "the levels below a grad record although no_grad is on around it",
        "tests/core/test_modes.py",
    ),
    Mutant(
        "rule_reads_what_is_written",
        "csrc/layers/jvp.cpp",
        "return tensor.is_same(target) || share_memory(tensor, target, layer) ? tensor.clone() : "
        "tensor;",
        "return tensor;",
        "the tangent of an in-place operator is computed from the value after the write",
        "tests/rules/forward/test_in_place_and_views.py "
        "tests/rules/forward/test_in_place_variants.py "
        "tests/transforms/test_jvp.py",
    ),
    Mutant(
        "overlapping_views_apart",
        "csrc/layers/functionalize/views.cpp",
        "    if (stride <= reach) {\n      return true;",
        "    if (stride < 0) {\n      return true;",
        "functionalize writes to an overlapping view as if each element were there once",
        "tests/transforms/functionalize",
    ),
    Mutant(
        "loop_of_same_draws",
        "csrc/layers/vmap/draws.cpp",
        "if (are_same && sample > 0) {",
        "if (are_same && sample > 1) {",
        "with randomness='same' the second sample draws other numbers than the first",
        "tests/random/test_same.py tests/random/test_counts.py",
    ),
    Mutant(
        "masked_write_replaces",
        "csrc/dispatch/decompose.cpp",
        "Tensor result = accumulates ? y + at::where(places, *value, at::zeros({}, "
        "value->options()))\n                              : at::where(places, *value, y);",
        "Tensor result = at::where(places, *value, y);\n  (void)accumulates;",
        "index_put with accumulate=True and a mask per sample replaces",
        "tests/in_place_under_vmap tests/rules/batching/test_masked.py",
    ),
    Mutant(
        "gradient_of_narrow",
        "csrc/graph/rules/composites.cpp",
        "grad, self_size, dim, start, start + length, 1)",
        "grad, self_size, dim, start, length, 1)",
        "the gradient of a differentiated script's narrow is put at the wrong end",
        "tests/graph/test_script.py tests/graph/test_script_kinds.py "
        "tests/graph/test_script_operands.py",
    ),
    Mutant(
        "gradient_in_a_graph_not_summed",
        "csrc/graph/gradients/lines.cpp",
        'return is_term && tensors > 1 ? name + "_reduced" : "";',
        'return "";',
        "the gradient of a script's operand that was broadcast has the result's size",
        "tests/graph/test_script.py tests/graph/test_script_kinds.py "
        "tests/graph/test_script_operands.py",
    ),
    Mutant(
        "stars_with_two_hubs",
        "csrc/sparse/star.cpp",
        "          forbidden_.add(colors_[hub], v);\n",
        "          (void)hub;\n",
        "entries of a Hessian share a color that can't be told apart",
        "tests/transforms/sparse/test_coloring.py tests/transforms/sparse/test_derivatives.py",
    ),
    Mutant(
        "guarded_list_may_grow",
        "csrc/python/compiled/guards.cpp",
        "if (PyList_GET_SIZE(of) != std::ssize(values)) {",
        "if (PyList_GET_SIZE(of) < std::ssize(values)) {",
        "a dropped guard: a compiled function does not see that a list has grown",
        "tests/compiler/capture/test_guards.py",
    ),
    Mutant(
        "recomputed_shape_unchecked",
        "csrc/python/hooks/checkpoint.cpp",
        "if (!place.looks.fit(recomputed.value)) {",
        "if (!place.looks.fit(recomputed.value) && !recomputed.value.defined()) {",
        "a dropped guard: a recomputation with another shape is used",
        "tests/remat/test_checkpoint.py",
    ),
    Mutant(
        "numbers_of_samples_first",
        "csrc/python/patches/batched_index.cpp",
        "auto at = std::find(dims.begin(), dims.end(), others_.front().first);",
        "auto at = dims.begin();",
        "y[:, index, i] with a number per sample has the index's dimension first",
        "tests/in_place_under_vmap/test_subscripts.py",
    ),
    Mutant(
        "compiled_scan_writes_its_start",
        "csrc/compiled/loop.cpp",
        "carry.push_back(tensor.clone());",
        "carry.push_back(tensor);",
        "a compiled scan writes to the caller's initial carry",
        "tests/compiler/test_loops.py",
    ),
    Mutant(
        "replayed_values_kept",
        "csrc/compiled/program.cpp",
        "return argument.is_last ? std::move(value) : value;",
        "return value;",
        "a replayed graph keeps all values to the end",
        "tests/fx/test_program.py",
    ),
)
