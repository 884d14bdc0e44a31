"""Any subset of operands may carry tangents: the contributions add up and agree with torch.func."""

import itertools
import warnings

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.rules.opinfo.cases import cases, full_name, ops

SAMPLES, OPERANDS = 2, 4

# Operators that are not compared with torch.func.
_LOST = "torch.func gives zeros where there is a tangent"
NOT_AS_TORCH = {
    "native_layer_norm": f"{_LOST}: of the mean and the deviation",
    "native_batch_norm": f"{_LOST}: of the mean and the deviation",
    "nn.functional.soft_margin_loss": f"{_LOST}: of the target",
    "scatter_reduce.prod": f"{_LOST}: of what is multiplied in",
    "triangular_solve": "torch's tangent is by the whole matrix, of which a triangle is read",
    "logcumsumexp": "torch's tangent has an epsilon in it, and is nan for complex numbers",
    "nn.functional.linear_cross_entropy.chunked": f"{_LOST}: torchlayers refuses",
    "nn.functional.linear_cross_entropy.chunked_none": f"{_LOST}: torchlayers refuses",
}


def subsets(count):
    """All non-empty subsets, small ones first; of many operands, single ones and all."""
    sizes = range(1, count + 1) if count <= OPERANDS else (1, count)
    return [s for size in sizes for s in itertools.combinations(range(count), size)]


def tangents_along(tf, case, subset):
    """The tangents of the results when these inputs vary and the others are constant."""

    def held(*moving):
        inputs = list(case.inputs)
        for place, value in zip(subset, moving, strict=True):
            inputs[place] = value
        return case.differentiable(*inputs)

    primals = tuple(case.inputs[i] for i in subset)
    tangents = tuple(case.tangents()[i] for i in subset)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.jvp(held, primals, tangents)[1]


def tangents_or_none(tf, case, subset):
    """The tangents; None if the operator is rejected."""
    try:
        return tangents_along(tf, case, subset)
    except (RuntimeError, NotImplementedError):
        return None


def samples_of(op, dtype):
    """Samples with two to four differentiable tensors, or one sample with a single one."""
    found = cases(op, dtype, None)
    several = [case for case in found if 2 <= len(case.inputs) <= OPERANDS]
    return several[:SAMPLES] or found[:1]


def added(lists):
    return [sum(parts) for parts in zip(*lists, strict=True)]


OPERATORS = [
    pytest.param(op, dtype, id=f"{full_name(op)}-{dtype}".replace("torch.", ""))
    for dtype in (torch.float64, torch.complex128)
    for op in ops(dtype)
]


@pytest.mark.sweep
@pytest.mark.parametrize(("op", "dtype"), OPERATORS)
def test_tangents_of_any_operands_add_up(op, dtype):
    for case in samples_of(op, dtype):
        alone = {}
        for subset in subsets(len(case.inputs)):
            ours = tangents_or_none(tl, case, subset)
            assert tl.current_stack() == ()
            theirs = tangents_or_none(torch.func, case, subset)
            if theirs is not None and full_name(op) not in NOT_AS_TORCH:
                assert ours is not None, f"refused along {subset}"
                torch.testing.assert_close(ours, theirs, equal_nan=True)
            alone[subset] = ours
            parts = [alone[(i,)] for i in subset]
            if ours is not None and None not in parts:
                torch.testing.assert_close(ours, added(parts), equal_nan=True)
