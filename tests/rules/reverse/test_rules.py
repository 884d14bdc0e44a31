"""Every rule is reached, correct, and saves no more than it needs.

Each rule has a call in samples.py that applies it, and all of op_db is compared with plain
autograd.
"""

import re

import pytest
import torch

import torchlayers as tl
from tests.rules.opinfo.cases import cases, full_name, ops
from tests.rules.reverse.samples import OWN, name_of, reaching
from tests.support.derivatives import (
    central_difference,
    cotangents_of,
    ours,
    pairing,
    plain,
    tangents_of,
    twice,
)
from tests.support.rule_tables import COTANGENTS

REFUSALS = (
    "modified by an inplace operation|is not implemented|single memory location|multiple views"
)
STEPS = 1e-6, 1e-5

rules = pytest.mark.parametrize("rule", COTANGENTS.operators)
quietly = pytest.mark.filterwarnings("ignore")  # warnings of op_db's operators


@rules
def test_a_rule_is_reached(rule):
    assert rule in reaching()


@pytest.mark.parametrize("name", OWN)
def test_a_sample_is_of_a_rule(name):
    assert name_of(name) in COTANGENTS.operators


@rules
def test_gradients_are_central_differences(rule):
    """Along a direction, for the elements on which two step sizes agree."""
    f, primals = reaching()[rule]
    tangents = tangents_of(*primals)
    fine, coarse = (central_difference(f, primals, tangents, step) for step in STEPS)
    pairs = list(zip(fine, coarse, strict=True))
    smooth = [torch.isclose(a, b, rtol=1e-3, atol=1e-4) & a.isfinite() for a, b in pairs]
    assert all(sure.any() for sure in smooth)
    cotangents = [
        torch.where(sure, g, 0) for sure, g in zip(smooth, cotangents_of(fine), strict=True)
    ]
    found = pairing(ours(f, primals, cotangents), tangents)
    differences = [torch.where(sure, d, 0) for sure, d in zip(smooth, fine, strict=True)]
    torch.testing.assert_close(found, pairing(cotangents, differences), rtol=1e-5, atol=1e-6)


def writing_after(f, what, place):
    """Calls f and then writes to one of its arguments or results, which are copies."""

    def written(*primals):
        arguments = [x * 1 for x in primals]
        results = f(*arguments)
        returned = [y * 1 for y in results]
        {"argument": arguments, "result": results}[what][place].mul_(2)
        return returned

    return written


def gradients_or_none(pull, f, primals, cotangents):
    """None if torch has no derivative, or if the write overlaps itself or overwrites a needed
    value."""
    torch.manual_seed(0)
    try:
        return pull(f, primals, cotangents)
    except RuntimeError as error:
        if not re.search(REFUSALS, str(error)):
            raise
        return None


# Where plain autograd is wrong according to central differences
# (test_gradients_are_central_differences).
WRONG_IN_TORCH = {
    "as_strided_scatter": "it keeps the cotangent of what is overwritten where that is everything",
}

# Values that a rule saves and torch's own derivative does not: (operator, argument).
SAVED_BESIDES = {
    ("aten::as_strided_scatter", 0): "its strides and its offset, which torch's wrong one ignores",
}


@quietly
@rules
def test_tensors_a_rule_does_not_save_may_be_written_to(rule):
    """A rule that saves less than plain autograd may work where plain autograd raises an error."""
    f, primals = reaching()[rule]
    cotangents = cotangents_of(f(*primals))
    unwritten = gradients_or_none(plain, f, primals, cotangents) or ours(f, primals, cotangents)
    for what, place in [*(("argument", i) for i in range(len(primals))), ("result", 0)]:
        written = writing_after(f, what, place)
        found = gradients_or_none(ours, written, primals, cotangents)
        assert tl.current_stack() == ()
        expected = gradients_or_none(plain, written, primals, cotangents)
        if expected is None:
            expected = unwritten if found is not None else None
        if what == "argument" and (rule, place) in SAVED_BESIDES:
            assert found is None and expected is not None
            continue
        assert (found is None) == (expected is None), f"{what} {place} is saved, and need not be"
        if rule.removeprefix("aten::") in WRONG_IN_TORCH:
            continue
        torch.testing.assert_close(found or [], expected or [], equal_nan=True)


def test_write_to_a_needed_tensor_is_detected():
    refused = {
        rule
        for rule in COTANGENTS.operators
        for f, primals in [reaching()[rule]]
        for place in range(len(primals))
        if gradients_or_none(
            ours, writing_after(f, "argument", place), primals, cotangents_of(f(*primals))
        )
        is None
    }
    assert {"aten::sin", "aten::mm", "aten::mul.Tensor", "aten::convolution"} <= refused


DERIVATIVES = {"first": lambda pull, *arguments: pull(*arguments), "second": twice}

# Samples that torchlayers rejects and plain autograd does not: (operator, dtype, derivative).
REFUSED = {
    ("sparse.mm.reduce", torch.float64, "first"): "torch does not note where the extremes are",
}

# Where plain autograd gives nan and torchlayers the limit, if there is one.
NAN_IN_TORCH = {
    "masked.logaddexp": "its second derivative at infinity",
    "masked.prod": "its derivative at infinity",
}

# Where torchlayers has no second derivative in any nest
# (tests/rules/special_values/test_norms_at_zero.py) and plain autograd has one for some arguments
# or orders.
NO_SECOND_DERIVATIVE = {"linalg.norm.subgradients_at_zero": "a norm has none at zero"}

# Absolute tolerance where numbers of 1e10 cancel in the derivative with respect to a weight.
CANCELS_OUT = {"cov": 1e-4}


def gradients_or_error(pull, case, derivative):
    """The gradients of a sample's results with respect to all its inputs."""

    def f(*primals):
        torch.manual_seed(0)
        return case.differentiable(*primals)

    try:
        cotangents = cotangents_of(f(*(x.clone() for x in case.inputs)))
        return DERIVATIVES[derivative](pull, f, case.inputs, cotangents), None
    except Exception as error:
        return None, error


def compare(op, dtype, samples):
    """By derivative, the errors for samples that plain autograd accepts."""
    refused = {}
    for case in cases(op, dtype, samples):
        for derivative in DERIVATIVES:
            found, error = gradients_or_error(ours, case, derivative)
            assert tl.current_stack() == ()
            expected, their_error = gradients_or_error(plain, case, derivative)
            if their_error is not None:
                continue
            if error is not None:
                refused[derivative] = error
                continue
            if full_name(op) in NAN_IN_TORCH:
                pairs = zip(found, expected, strict=True)
                expected = [torch.where(y.isnan(), x, y) for x, y in pairs]
            if full_name(op) in NO_SECOND_DERIVATIVE and derivative == "second":
                pairs = zip(found, expected, strict=True)
                assert all(
                    x.isnan().all() or torch.equal(x, y) or y.isnan().all() for x, y in pairs
                )
                continue
            # Elements that cancel are only as precise as the largest one.
            largest = max(
                [float(y.abs().nan_to_num(0, 0, 0).amax()) for y in expected if y.numel()] or [0]
            )
            torch.testing.assert_close(
                found,
                expected,
                equal_nan=True,
                rtol=1e-7,
                atol=max(CANCELS_OUT.get(full_name(op), 1e-8), 1e-9 * largest),
                msg=lambda said, derivative=derivative: f"{derivative} derivative: {said}",
            )
    return refused


def expectation(op):
    reason = WRONG_IN_TORCH.get(full_name(op))
    return pytest.mark.xfail(reason=reason, raises=AssertionError) if reason else ()


OPERATORS = [
    pytest.param(
        op, dtype, id=f"{full_name(op)}-{dtype}".replace("torch.", ""), marks=expectation(op)
    )
    for dtype in (torch.float64, torch.complex128)
    for op in ops(dtype)
]


@pytest.mark.sweep
@quietly
@pytest.mark.parametrize(("op", "dtype"), OPERATORS)
def test_gradients_of_op_db_are_plain_autograds(op, dtype):
    refused = compare(op, dtype, 2)
    assert not refused, refused


@quietly
@pytest.mark.full
@pytest.mark.parametrize(("op", "dtype"), OPERATORS)
def test_gradients_of_all_samples_of_op_db_are_plain_autograds(op, dtype):
    refused = compare(op, dtype, None)
    listed = {kind for name, of, kind in REFUSED if (name, of) == (full_name(op), dtype)}
    assert refused.keys() == listed, refused


@quietly
@pytest.mark.parametrize("name", NAN_IN_TORCH)
def test_fewer_gradients_are_nan_than_in_torch(name):
    (op,) = [op for op in ops(torch.float64) if full_name(op) == name]
    found = {"here": 0, "in torch": 0}
    for case in cases(op, torch.float64, None):
        for who, pull in (("here", ours), ("in torch", plain)):
            gradients, _ = gradients_or_error(pull, case, "second")
            found[who] += sum(int(g.isnan().sum()) for g in gradients or [])
    assert found["here"] < found["in torch"]
