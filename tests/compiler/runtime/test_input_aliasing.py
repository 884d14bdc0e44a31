"""Compiled functions that write to memory shared by several tensors or several elements."""

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.calls import assert_same

BACKENDS = [
    {"backend": "replay"},
    {"backend": "replay", "check": False},
    {"backend": "replay", "dynamic": True},
    {"backend": "inductor", "check": False},
]
backends = pytest.mark.parametrize("options", BACKENDS, ids=lambda o: "-".join(map(str, o.items())))


def numbers(*shape):
    count = torch.Size(shape).numel()
    return torch.arange(1.0, count + 1, dtype=torch.float64).reshape(shape)


def rows_and_columns(x):
    x.mul_(2)
    x[0].add_(1)
    return x.sum(0), x.t(), x[1], x[1:, :2]


def first_row(x):
    x[0].mul_(2)
    return x + 1


CALLS = {
    "transposed": (rows_and_columns, lambda: numbers(3, 4).t()),
    "every other, from an offset on": (rows_and_columns, lambda: numbers(6, 8)[1::2, 1::2]),
    "turned, from an offset on": (rows_and_columns, lambda: numbers(5, 8)[1:, 2:6].t()),
    "no elements": (rows_and_columns, lambda: numbers(4, 0)),
    "expanded": (first_row, lambda: numbers(1, 3).expand(2, 3)[:, :1]),
    "overlapping": (first_row, lambda: numbers(4).as_strided((2, 3), (1, 1))),
}


@pytest.mark.sweep(one_in=16)
@backends
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("error:torchlayers")
def test_arguments_of_any_strides_are_written(name, options):
    f, make = CALLS[name]
    compiled = tl.compile(f, **options)
    for _ in range(2):
        given, expected_given = make(), make()
        result, expected = compiled(given), f(expected_given)
        assert_same(result, expected, rounded=True)
        assert_same(given, expected_given)
        pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else ()
        assert all(a.stride() == b.stride() for a, b in pairs)


def written_one_after_the_other(x, y):
    y.mul_(2)
    total = x.sum()
    x.add_(1)
    y.sub_(3)
    return total, y * 2


@pytest.mark.sweep
@backends
@pytest.mark.parametrize("differentiated", [False, True])
def test_two_arguments_that_share_memory(differentiated, options):
    weight = nn.Parameter(numbers(3)) if differentiated else numbers(3)

    def f(x, y):
        total, twice = written_one_after_the_other(x, y)
        return total * (weight * twice).sum()

    compiled = tl.compile(f, **options)
    for apart in (False, True, False):
        results = []
        for function in (f, compiled):
            x = numbers(4)
            result = function(x, (x.clone() if apart else x)[1:])
            gradient = torch.autograd.grad(result, weight)[0] if differentiated else None
            results.append((result.detach(), x, gradient))
        assert_same(*results, rounded=True)


@backends
def test_write_to_an_argument_that_is_also_captured(options):
    held = numbers(4)

    def f(x):
        x.mul_(2)
        return held + x

    compiled = tl.compile(f, **options)
    assert_same(compiled(held), numbers(4) * 4)
    assert_same(compiled(held[:]), numbers(4) * 8)
    assert_same(held, numbers(4) * 4)


@pytest.mark.sweep
@backends
def test_a_write_is_seen_by_autograd_outside(options):
    def f(x, weight):
        x.mul_(2)
        return x * weight

    weight = nn.Parameter(numbers(3))
    compiled, x, other = tl.compile(f, **options), numbers(3), nn.Parameter(numbers(3))
    product = (x * other).sum()
    compiled(x, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
