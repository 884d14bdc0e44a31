"""Whichever operands carry tangents: the tangents add up, and are torch.func's."""

import itertools
import warnings

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.opinfo.cases import cases, full_name, ops

SAMPLES, OPERANDS = 2, 4

# Values whose derivatives torch.func leaves out or has wrong.
NOT_AS_TORCH: dict[str, str] = {}


def subsets(count):
    """All but the empty one, the small ones first."""
    sizes = range(1, count + 1)
    return [s for size in sizes for s in itertools.combinations(range(count), size)]


def tangents_along(tf, case, subset):
    """The tangents of the results with these inputs moving and the others held."""

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
    """None where the operator is refused."""
    try:
        return tangents_along(tf, case, subset)
    except (RuntimeError, NotImplementedError):
        return None


def of_several_operands(dtype):
    """Operators of op_db with a sample of two to four tensors that may vary."""
    found = []
    for op in ops(dtype):
        several = [c for c in cases(op, dtype, None) if 2 <= len(c.inputs) <= OPERANDS]
        if several:
            found.append(pytest.param(several[:SAMPLES], id=full_name(op)))
    return found


def added(lists):
    return [sum(parts) for parts in zip(*lists, strict=True)]


def check(op_cases):
    for case in op_cases:
        alone = {}
        for subset in subsets(len(case.inputs)):
            ours = tangents_or_none(tl, case, subset)
            theirs = tangents_or_none(torch.func, case, subset)
            assert tl.current_stack() == ()
            if theirs is not None:
                assert ours is not None, f"refused along {subset}"
                torch.testing.assert_close(ours, theirs, equal_nan=True)
            alone[subset] = ours
            parts = [alone[(i,)] for i in subset]
            if ours is not None and None not in parts:
                torch.testing.assert_close(ours, added(parts), equal_nan=True)


@pytest.mark.parametrize("op_cases", of_several_operands(torch.float64))
def test_real_tangents_of_any_operands_add_up(op_cases):
    check(op_cases)


@pytest.mark.parametrize("op_cases", of_several_operands(torch.complex128))
def test_complex_tangents_of_any_operands_add_up(op_cases):
    check(op_cases)
