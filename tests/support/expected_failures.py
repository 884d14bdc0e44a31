"""Differences between torch 2.11 and 2.15 in the tests: missing features, expected failures, and
why.

No other test file checks the torch version (docs/versions.md).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch

HERE = tuple(int(part) for part in torch.__version__.split(".")[:2])
OLDEST, NEWEST = (2, 11), (2, 15)

# Operators that are in a rule table but not in this torch, with the reason.
ABSENT = {}
if HERE >= (2, 14):
    ABSENT["aten::cholesky"] = "it is torch.linalg's alone"
if HERE <= OLDEST:
    for _name in ("batch_p2p_ops", "irecv", "isend"):
        ABSENT[f"_c10d_functional::{_name}"] = "it has no such messages"
if HERE < NEWEST:
    ABSENT["_c10d_functional::wait_tensors"] = "lists are waited for one by one"

# The sum reduction, as passed to a functional collective.
SUM = torch.distributed.ReduceOp.SUM if HERE >= NEWEST else "sum"

# Whether a fake tensor, and so the result of a captured graph, may be in a compressed layout.
COMPRESSED_ARE_CAPTURED = HERE >= NEWEST

# Names of op_db that this torch lacks.
_NO_SAMPLES = {"cholesky", "qr"} if HERE >= (2, 14) else set()
if HERE <= (2, 12):
    _NO_SAMPLES |= {
        "native_group_norm",
        "nn.functional.linear_cross_entropy.chunked",
        "nn.functional.linear_cross_entropy.chunked_none",
    }


def in_this_torch(rules: Iterable[str]) -> list[str]:
    """Of these operators of a rule table, those that this torch has."""
    return sorted({*rules} - ABSENT.keys())


def has_samples(name: str) -> bool:
    """Whether this torch's op_db has the operator; true for a name unknown to any version."""
    return name not in _NO_SAMPLES


@dataclass(frozen=True)
class Failing:
    """Tests that fail with some versions of torch; all of them have to fail there."""

    reason: str
    tests: str  # a regular expression of their ids
    since: tuple[int, int] = OLDEST
    until: tuple[int, int] = NEWEST
    is_run: bool = True  # False: running it would make other tests fail

    def is_here(self) -> bool:
        return self.since <= HERE <= self.until


_WITH_JVP = (
    "Square|Exp|TanhByVjp|Identity|SumOverShape|Mean|Flatten|Middle|ClampInPlaceOnFresh|Softmax|"
    "LogSumExp|Swish|KeepsTensorOnCtx|WithoutMaterializedGrads|TimesNumber|Mul|AddBroadcast|"
    "Gather|MatMul|RootMeanSquareNorm|CumulativeSum|SinCos|SinhWithIntermediates|Sort|"
    "OutputThatIsNoTensor|TransformInForward|TransformInDerivatives|VmapInDerivatives|"
    "GradInDerivatives|VjpAndJvpInDerivatives|ReadsLateAndTwice|KeepsTensorsInLists|"
    "TransformInVmap"
)

FAILING = [
    Failing(
        "named tensors have operators, with lists of names for arguments, until 2.12",
        r"tests/custom_operators/test_argument_kinds.py::"
        r"test_documented_kinds_cover_every_torch_operator",
        until=(2, 12),
    ),
    Failing(
        "torch.export(strict=True) can't trace torch.func.jvp",
        r"tests/torch_integration/test_export.py::"
        r"test_strict_export_of_a_transform\[(jvp|linearize)\]",
        until=(2, 12),
    ),
    Failing(
        "torch.func gives zeros inside inference mode",
        r"tests/(autograd_function/test_modes.py::test_inference_mode_outside"
        r"|(transforms/test_(grad|jvp|vjp)|core/test_modes).py::"
        r"(test_a_mode_outside_holds_outside_only\[.*inference_mode\]"
        r"|test_modes_between_two_grads\[.*-inference_mode\]|test_a_mode_around_a_transform"
        r"\[(grad|vjp|jvp|vmap\(grad\)|grad\(grad\)|jvp\(grad\))-inference mode\]))",
        until=(2, 11),
    ),
    Failing(
        "make_fx can't record it: it looks at values to check its arguments",
        r"tests/graph/test_fx_op_db.py::test_gradients_are_eagers\[quantile\]",
        until=(2, 11),
    ),
    Failing(
        "torch.func has no rearrange; ours is functorch.einops's",
        r"tests/modules/test_module.py::test_functions_are_torch_funcs_own\[rearrange\]",
        until=(2, 12),
    ),
    Failing(
        "op_db has no samples of nextafter with derivatives, or of ne",
        r"tests/(rules/(forward|reverse)/test_(rules|node_names).py::(test_every_rule_is_reached"
        r"|test_write_to_a_needed_tensor_is_detected|test_\w+\[aten::nextafter\])"
        r"|transforms/sparse/test_op_db_patterns.py::"
        r"test_patterns_are_exact_but_for_listed_operators)",
        until=(2, 12),
    ),
    Failing(
        "op_db has no samples of aminmax and narrow_copy with derivatives",
        r"tests/rules/(forward|reverse)/test_(rules|node_names).py::"
        r"test_\w+\[aten::(aminmax|narrow_copy)\]",
        until=(2, 11),
    ),
    Failing(
        "leaky_relu has not the tag of pointwise operators",
        r"tests/repository/test_rule_tables.py::"
        r"test_every_typed_kernel_that_is_written_is_registered",
        until=(2, 11),
    ),
    Failing(
        "an autograd.Function's apply does not look at what forward takes",
        r"tests/autograd_function/test_call.py::test_operands_that_forward_does_not_take"
        r"\[by keyword alone, applied\]",
        until=(2, 12),
    ),
    Failing(
        "torch has no batching rule for views as another dtype",
        r"tests/(rules/batching/test_views.py::test_a_view_is_a_samples_and_is_written_through"
        r"\[view as another dtype-.*\]"
        r"|in_place_under_vmap/test_constructs.py::test_vmap_of_vmap\[another dtype of its bits\]"
        r"|compiler/passes/test_complex_writes.py::test_writes_to_real_and_imaginary_parts"
        r"\[as_real-vmap-.*\])",
        until=(2, 12),
    ),
    Failing(
        "Inductor has no such functions to be replaced by quicker ones",
        r"tests/compiler/inductor/test_shortcuts.py::test_(strides_equal_inductors\[.*\]"
        r"|sympy_simplify_is_not_called\[.*\])",
        until=(2, 12),
    ),
    Failing(
        "Inductor draws other numbers, or takes no generator: the graph is replayed",
        r"tests/compiler/test_random_numbers.py::test_(same_seed|explicit_generators)"
        r"_draws?_the_same_numbers_as_eager\[inductor.*\]",
        until=(2, 12),
    ),
    Failing(
        "torch's scan along a dimension stacks what it emits along the first",
        r"tests/control_flow/test_torch_operators.py::"
        r"test_(batched_program_equals_its_unrolled_version|layers_of_torch_func_may_be_around.*)"
        r"\[scan along the last dimension, reversed.*\]",
        until=(2, 12),
    ),
    Failing(
        "torch's matmul reads symbolic sizes as numbers",
        r"tests/(control_flow/test_symbolic_sizes.py::(test_one_capture_runs_scans_of_all_sizes"
        r"\[recurrent-vmap\(grad\)\]|test_batch_size_may_be_symbolic\[(recurrent1|<lambda>[0145])\]"
        r"|test_steps_with_symbolic_sizes_do_not_run_in_python"
        r"|test_forward_mode_of_many_primals_with_one_tangent)"
        r"|compiler/runtime/test_dynamic_shapes.py::(test_changed_size_does_not_run_python_again"
        r"\[Jacobians by columns\]|test_memory_with_holes\[expanded\]))",
        until=(2, 12),
    ),
    Failing(
        "a DTensor has no detach_, which torch's own redistribution calls",
        r"tests/distributed/test_(vmap|dtensor_inside|sharded_modules).py::test_over_ranks\[\d+-"
        r"(plain_autograd_has_the_same_gradients|what_is_not_given_is_the_modules_own)\]",
        until=(2, 12),
    ),
    Failing(
        "torch.compile takes the sizes of Jacobians' bases for data",
        r"tests/transforms/test_argnums.py::test_gradients_by_names_compile\[(jacfwd|hessian)\]",
        until=(2, 12),
    ),
    Failing(
        "torch warns of sparse tensors that are not checked, though it was told not to check them",
        r"tests/repository/test_docs.py::test_examples_of_a_docstring_give_the_stated_output"
        r"\[torchlayers.transforms.sparse.pattern.SparsityPattern.to_sparse\]",
        until=(2, 12),
    ),
    Failing(
        "torch's script of binary_cross_entropy calls Python with tensors for sizes",
        r"tests/graph/test_script_operands.py::test_special_values\[binary_cross_entropy\]",
        until=(2, 12),
    ),
    Failing(
        "Dynamo's fake tensor of a parameter is a leaf where the parameter given is none",
        r"tests/torch_integration/test_install.py::"
        r"test_programs_compile_while_installed\[functional_call-eager\]",
        until=(2, 11),
    ),
    Failing(
        "the second derivative of torch's elu is 0 at nan",
        r"tests/fuzz/test_random_programs.py::test_programs_at_special_values\[2\]",
        until=(2, 11),
    ),
    Failing(
        "torch has no batching rule of unbind_copy, which ours has",
        r"tests/rules/opinfo/test_op_db.py::test_(basic|all)_transforms_agree_with_torch_func"
        r"\[unbind_copy\]",
        until=(2, 12),
    ),
    Failing(
        "torch's gathering of a module's own parameters reads the memory of a layer's tensor",
        r"tests/distributed/test_dtensor_inside.py::test_over_ranks"
        r"\[\d+-a_module_of_fully_shard_as_a_closure\]",
        until=(2, 12),
    ),
    Failing(
        "torch's reduce_scatter of a list takes contiguous tensors alone",
        r"tests/distributed/test_collectives.py::test_a_nest_over_a_collective_is_that_of_all_ranks"
        r"\[\d+-jacrev-reduce_scatter of a list\]",
        until=(2, 11),
    ),
    Failing(
        "torch shards a second derivative that it replicates in later versions",
        r"tests/distributed/test_dtensor_inside.py::test_over_ranks"
        r"\[\d+-gradients_lie_as_their_arguments\]",
        until=(2, 11),
    ),
    Failing(
        "a DTensor has no flip",
        r"tests/distributed/test_dtensor.py::test_over_ranks\[\d+-jacobians\]",
        until=(2, 11),
    ),
    Failing(
        "torch has no fake kernel of quantize_per_tensor",
        r"tests/compiler/test_tensor_kinds.py::test_as_results\[quantized-.*\]",
        until=(2, 11),
    ),
    Failing(
        "torch has no second derivative of grid_sample, which ours has",
        r"tests/rules/opinfo/test_op_db.py::test_all_transforms_agree_with_torch_func"
        r"\[(nn.functional.grid_sample|grid_sampler_[23]d)\]",
        until=(2, 11),
    ),
    Failing(
        "a checkpoint whose function raises leaves its hooks on torch's stack",
        r"tests/patches/test_torch_checkpoint.py::test_a_users_hooks_take_what_is_kept\[.*\]",
        until=(2, 12),
        is_run=False,
    ),
    Failing(
        "a selective checkpoint can't be told that the user's hooks take what it keeps",
        r"tests/patches/test_torch_checkpoint.py::test_a_users_hooks_take_what_is_kept\[.*\]",
        since=(2, 13),
        until=(2, 13),
    ),
    Failing(
        "Dynamo refuses every autograd.Function that has a jvp",
        rf"tests/autograd_function/test_modes.py::test_compiled\[({_WITH_JVP})\]",
        since=(2, 15),
    ),
    Failing(
        "make_fx can't record a collective that is given a ReduceOp",
        r"tests/distributed/test_collectives.py::test_a_nest_over_a_collective_is_that_of_all_ranks"
        r"\[\d+-linearize-all_reduce, by a ReduceOp\]",
        since=(2, 15),
    ),
    Failing(
        "make_fx records it with a shape that is not known",
        r"tests/graph/test_fx_op_db.py::test_what_is_listed_fails_as_listed\[combinations\]",
        since=(2, 14),
    ),
    Failing(
        "torch.func takes such a mask",
        r"tests/transforms/test_vmap.py::test_torch_func_refuses_one_value_written_by_a_mask"
        r"\[(one dimension|fewer dimensions|vmap\(vmap\)|vmap\(grad\)|grad\(vmap\))\]",
        since=(2, 15),
    ),
    Failing(
        "torch says it in other words, or refuses it too",
        r"tests/errors/test_vmap_(samples.py::TestShapes::test_misuse_is_refused_in_these_words"
        r"\[linear of another width\]|dims.py::TestOutDims::"
        r"test_programs_that_catch_torch_funcs_error_catch_ours"
        r"\[beyond the last, not batched\])",
        since=(2, 14),
    ),
    Failing(
        "torch.func takes them too",
        r"tests/core/test_tensor_kinds.py::test_a_tensor_of_any_kind_captured"
        r"\[vmap-(nested, jagged|torch_dispatch subclass)\]",
        since=(2, 14),
    ),
    Failing(
        "torch's formula has been mended, or its forward mode is the transpose of its reverse mode",
        r"tests/rules/special_values/test_rules.py::test_a_difference_that_is_listed_is_there"
        r"\[(special_i1, vjp jvp vjp\(vjp\) jvp\(vjp\)|i0, vjp\(vjp\) jvp\(vjp\)|fmax, jvp)\]",
        since=(2, 15),
    ),
    Failing(
        "torch has no forward mode of this attention, which ours has",
        r"tests/(rules/opinfo/test_op_db.py::test_(basic|all)_transforms_agree_with_torch_func"
        r"\[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu\]"
        r"|core/test_modes.py::test_autocast_gives_the_dtypes_of_plain_code"
        r"\[jvp-scaled_dot_product_attention-dtype[01]-(around|inside)\])",
        since=(2, 14),
    ),
    Failing(
        "torch's own fill, which ours is held against, asks for memory that a wrapper has none of",
        r"tests/rules/batching/test_rules.py::test_is_differentiated_as_torchs\[fill.Tensor-[01]\]",
        since=(2, 14),
    ),
    Failing(
        "torch's batching rule of repeat_interleave, held against ours, asks for output_size",
        r"tests/rules/batching/test_rules.py::test_is_differentiated_as_torchs"
        r"\[repeat_interleave.Tensor-0\]",
        since=(2, 14),
    ),
    Failing(
        "torch.cholesky is torch.linalg's, whose rule is another",
        r"tests/rules/reverse/test_rules.py::test_a_sample_is_of_a_rule\[cholesky\]",
        since=(2, 14),
    ),
    Failing(
        "op_db has complex samples of it, which its kernel refuses",
        r"tests/rules/reverse/test_rules.py::test_gradients_of(_all_samples_of)?_op_db_are_plain_"
        r"autograds\[nn.functional.feature_alpha_dropout.with_train-complex128\]|"
        r"tests/transforms/jet/test_rules.py::test_operators_of_op_db_agree_with_nested_jvps"
        r"\[nn.functional.feature_alpha_dropout.with_train-torch.complex128\]",
        since=(2, 15),
    ),
]


def expect_failures(items: Iterable[pytest.Item]) -> None:
    """Marks the tests listed in FAILING as expected failures."""
    here = [(re.compile(failing.tests), failing) for failing in FAILING if failing.is_here()]
    for item in items:
        for tests, failing in here:
            if tests.fullmatch(item.nodeid):
                mark = pytest.mark.xfail(reason=failing.reason, run=failing.is_run, strict=True)
                item.add_marker(mark)
