"""Elementwise rules, and those that select by order, at nan, infinities, zeros, denormals and ties.

Each of them, found by calling it (calls.py), is compared with plain autograd in the same dtype, and
in one pass with its operators: both have nan, infinity and zero at the same elements. Where float32
intermediates of plain autograd overflow or underflow although the result does not, autograd in
float64 decides.
"""

import pytest
import torch

import torchlayers as tl
from tests.rules.special_values.calls import (
    differentiable_places,
    elementwise_calls,
    of_places,
    ordering_calls,
)
from tests.rules.special_values.derivatives import DERIVATIVES
from tests.rules.special_values.differences import DIFFERENCES, NOT_IN_TORCH, REFUSED, listed
from tests.rules.special_values.values import combinations, orders

ONE_PASS = 125  # elements; few enough for one pass
LARGE = 257  # too many for one pass

quietly = pytest.mark.filterwarnings("ignore")  # casting complex values, deprecations
dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=lambda dtype: str(dtype).removeprefix("torch.")
)
derivatives = pytest.mark.parametrize("derivative", DERIVATIVES)


def with_places(calls):
    return [
        pytest.param(call, places, id=call.id)
        for call in calls
        if call.rule.removeprefix("aten::") not in REFUSED
        and (places := differentiable_places(call))
    ]


elementwise = pytest.mark.parametrize(("call", "places"), with_places(elementwise_calls()))
ordering = pytest.mark.parametrize(("call", "places"), with_places(ordering_calls()))


def test_the_rules_are_found():
    found = {call.rule.removeprefix("aten::") for call in elementwise_calls()}
    assert {"sin", "atan2", "where.self", "softplus_backward", "maximum", "mish"} <= found
    chosen = {call.rule.removeprefix("aten::") for call in ordering_calls()}
    assert {"max", "max.dim", "amax", "aminmax", "median", "sort", "cummax", "topk"} <= chosen


def in_chunks(derivative, call, tensors, places):
    """The derivatives in chunks small enough for one pass."""
    chunks = zip(*(x.split(ONE_PASS) for x in tensors), strict=True)
    parts = [derivative(*of_places(call, list(chunk), places)) for chunk in chunks]
    return [torch.cat(part).detach() for part in zip(*parts, strict=True)]


def at_once(derivative, call, tensors, places):
    """The derivatives of tensors too large for one pass."""
    count = len(tensors[0])
    large = [x.repeat(LARGE // count + 1) for x in tensors]
    return [x[:count].detach() for x in derivative(*of_places(call, large, places))]


def is_special(x):
    return (x == 0) | ~x.isfinite() | (x.abs() < torch.finfo(x.dtype).tiny)


def assert_same_but_for_rounding(found, expected, sizes, derivative):
    """nan, infinities and zeros, with their signs, are bitwise the same. Other values differ by
    rounding errors relative to the operands, which may cancel; in sums of terms, to zero."""
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        bits = {4: torch.int32, 8: torch.int64}[x.element_size()]
        same = (x.isnan() & y.isnan()) | (x.contiguous().view(bits) == y.contiguous().view(bits))
        near = (x - y).abs() <= 64 * torch.finfo(x.dtype).eps * torch.maximum(y.abs(), sizes)
        may_be_rounded = near & ("(" in derivative or ~(is_special(x) | is_special(y)))
        wrong = ~same & ~may_be_rounded
        assert not wrong.any(), f"{x[wrong][:5]} for {y[wrong][:5]}"


def sizes_of(tensors, dtype):
    """The largest operand magnitude at each element, and at least one."""
    finite = [x.to(dtype).abs().nan_to_num(0, 0, 0) for x in tensors]
    return torch.stack([*finite, torch.ones_like(finite[0])]).amax(0)


@pytest.mark.sweep(one_in=8)
@quietly
@dtypes
@derivatives
@elementwise
def test_elementwise_is_the_same_in_one_pass(call, places, derivative, dtype):
    ours, _ = DERIVATIVES[derivative]
    tensors = combinations(call.flags, dtype)
    in_one_pass = in_chunks(ours, call, tensors, places)
    with tl.trace():
        by_operators = in_chunks(ours, call, tensors, places)
    assert_same_but_for_rounding(in_one_pass, by_operators, sizes_of(tensors, dtype), derivative)


def is_close(x, y, is_sum):
    """Allows for cancellation if it is a sum of several terms."""
    rtol = {torch.float32: 5e-5, torch.float64: 1e-11}[y.dtype]
    least = torch.nextafter(y.new_zeros(()), y.new_ones(()))
    atol = 16 * torch.finfo(y.dtype).eps if is_sum else 64 * float(least)
    return torch.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True)


def differences(run, call, places, derivative, dtype):
    """Results that match neither plain autograd nor its float64 version: ours and theirs."""
    ours, theirs = DERIVATIVES[derivative]
    tensors = combinations(call.flags, dtype)
    found = run(ours, call, tensors, places)
    expected = run(theirs, call, tensors, places)
    wide = [x if x.dtype == torch.bool else x.double() for x in tensors]
    exact = run(theirs, call, wide, places) if dtype == torch.float32 else expected
    is_sum = "(" in derivative or (derivative == "jvp" and len(places) > 1)
    for x, y, z in zip(found, expected, exact, strict=True):
        wrong = ~is_close(x, y, is_sum) & ~is_close(x, z.to(dtype), is_sum)
        yield x[wrong], y[wrong]


def check(found, expected):
    """Asserts that there are no differences except listed ones."""
    for ours, theirs in found:
        for difference in expected:
            keep = ~difference.where(ours, theirs)
            ours, theirs = ours[keep], theirs[keep]
        assert not len(ours), f"{ours[:5]} for {theirs[:5]}"


def compared_with_plain():
    for case in with_places(elementwise_calls()):
        for derivative, (_, theirs) in DERIVATIVES.items():
            rule = case.values[0].rule.removeprefix("aten::")
            if theirs is not None and derivative not in NOT_IN_TORCH.get(rule, ()):
                yield pytest.param(*case.values, derivative, id=f"{case.id}-{derivative}")


@pytest.mark.sweep(one_in=8)
@quietly
@dtypes
@pytest.mark.parametrize("run", [in_chunks, at_once])
@pytest.mark.parametrize(("call", "places", "derivative"), list(compared_with_plain()))
def test_elementwise_is_plain_autograds(call, places, derivative, run, dtype):
    check(differences(run, call, places, derivative, dtype), listed(call, derivative))


def rows(dtype):
    """Tensors to select from, small enough for one pass and larger."""
    for row in orders(dtype):
        yield row
        yield row.repeat(100) if row.dim() else row


def differences_of_order(call, derivative, dtype):
    ours, theirs = DERIVATIVES[derivative]
    for row in rows(dtype):
        try:
            expected = theirs(call, [row])
        except (RuntimeError, IndexError):
            assert row.dim() == 0  # there is no second largest
            continue
        for x, y in zip(ours(call, [row]), expected, strict=True):
            wrong = ~is_close(x, y, is_sum=True)
            yield x[wrong], y[wrong]


def compared_orders():
    for case in with_places(ordering_calls()):
        for derivative, (_, theirs) in DERIVATIVES.items():
            if theirs is not None:
                yield pytest.param(case.values[0], derivative, id=f"{case.id}-{derivative}")


@pytest.mark.sweep
@quietly
@dtypes
@pytest.mark.parametrize(("call", "derivative"), list(compared_orders()))
def test_choosing_is_plain_autograds(call, derivative, dtype):
    check(differences_of_order(call, derivative, dtype), listed(call, derivative))


@pytest.mark.sweep
@quietly
@dtypes
@derivatives
@ordering
def test_choosing_is_the_same_in_one_pass(call, places, derivative, dtype):
    ours, _ = DERIVATIVES[derivative]
    for row in rows(dtype):
        if row.dim():
            in_one_pass = ours(call, [row])
            with tl.trace():
                by_operators = ours(call, [row])
            for x, y in zip(in_one_pass, by_operators, strict=True):
                assert_same_but_for_rounding([x], [y], torch.ones_like(y), derivative)


@pytest.mark.sweep
@quietly
@pytest.mark.parametrize("difference", DIFFERENCES, ids=str)
def test_a_difference_that_is_listed_is_there(difference):
    def all_there_are():
        for case in with_places(elementwise_calls() + ordering_calls()):
            call, places = case.values
            for derivative in DERIVATIVES:
                if difference in listed(call, derivative):
                    for dtype in (torch.float32, torch.float64):
                        if call in ordering_calls():
                            yield from differences_of_order(call, derivative, dtype)
                        else:
                            yield from differences(in_chunks, call, places, derivative, dtype)

    assert any(bool(difference.where(*pair).any()) for pair in all_there_are())
