"""Zeros, ones and identities folded: with special values, mixed dtypes and broadcast shapes."""

import math

import pytest
import torch
from torch import Tensor

from tests.compiler.passes.simplified import operators, same

SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.0, 1e-40]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


def special(dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.tensor(SPECIAL, dtype=dtype)
    return torch.tensor([0, 1, 3, 0, 1, 1, 2, 0], dtype=dtype)


FOLDED = {
    "times ones": lambda x: x * torch.ones_like(x),
    "ones times": lambda x: torch.ones(8, dtype=x.dtype) * x,
    "times one": lambda x: x * 1,
    "times one, a float": lambda x: x * 1.0,
    "times ones of float64": lambda x: x * torch.ones(8, dtype=torch.float64),
    "times one of float64, of no dimension": lambda x: x * torch.ones((), dtype=torch.float64),
    "times ones of more dimensions": lambda x: x * torch.ones(3, 1, dtype=x.dtype),
    "times twos": lambda x: x * torch.full_like(x, 2),
    "times a number that dtypes round": lambda x: x * torch.full((8,), 0.1, dtype=torch.float32),
    "times zeros": lambda x: x * torch.zeros_like(x),
    "plus zeros": lambda x: x + torch.zeros_like(x),
    "zeros plus": lambda x: torch.zeros(2, 8, dtype=x.dtype) + x,
    "plus zero": lambda x: x + 0,
    "plus zero, a float": lambda x: x + 0.0,
    "plus twice a number everywhere": lambda x: torch.add(
        x, torch.full((8,), 3, dtype=x.dtype), alpha=2
    ),
    "a number everywhere plus twice": lambda x: torch.add(torch.ones_like(x), x, alpha=2),
    "over ones": lambda x: x / torch.ones_like(x),
    "to the power of one": lambda x: x**1,
    "sum of ones": lambda x: torch.ones(2, 3).sum() * x,
    "sum of ones by rows": lambda x: torch.ones(8, 3, dtype=x.dtype).sum(1) * x,
    "computed of ones": lambda x: (torch.ones(8).exp() * 2).view(2, 4).t().reshape(8) * x,
    "of ones that are cast": lambda x: torch.ones(8, dtype=torch.int64).to(x.dtype) * x,
}
NOT_OF_BOOL = {
    "minus zeros": lambda x: x - torch.zeros_like(x),
    "minus zero": lambda x: x - 0,
    "twice negative": lambda x: x.neg().neg(),
}


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64], ids=str)
@pytest.mark.parametrize("name", [*FOLDED, *NOT_OF_BOOL])
def test_folded_graph_equals_the_original(name: str, dtype: torch.dtype):
    func = {**FOLDED, **NOT_OF_BOOL}[name]
    if dtype == torch.bool and (name in NOT_OF_BOOL or "twice" in name):
        pytest.skip("torch has no such operator on bool")
    x = special(dtype)
    same(func, x)
    same(func, torch.stack([x, x], 1)[:, 0])


@pytest.mark.parametrize(
    "func, left",
    [
        (lambda x: x * torch.ones_like(x) + torch.zeros_like(x), ["clone"]),
        (lambda x: (x + 0).sin() * 1, ["sin"]),
        (lambda x: x * torch.full_like(x, 2).exp(), ["mul"]),
        (lambda x: (torch.ones(2, 8).sum(0) * x).cos(), ["mul", "cos"]),
        (lambda x: torch.addcmul(torch.zeros(8), x, x), ["mul"]),
        (lambda x: torch.eye(8) @ x.view(8, 1).sin(), ["view", "sin"]),
        (lambda x: x.view(1, 8).sin() @ torch.eye(8).t(), ["view", "sin"]),
        (
            lambda x: torch.addmm(torch.zeros(8, 8), x.view(8, 1), x.view(1, 8)),
            ["view", "view", "mul"],
        ),
    ],
)
def test_remaining_operators(func, left):
    assert operators(same(func, torch.randn(8))) == left


def test_constants_minus_x_are_not_x_minus_constants():
    x = torch.tensor([1.5, -2.0])
    same(lambda x: (torch.zeros(2) - x, torch.ones(2) - x), x)
    same(lambda x: torch.zeros(2).sub(x, alpha=2), x)


def test_zero_times_possible_nan_is_not_folded():
    graph = same(lambda x: torch.zeros(2) * x, torch.tensor([math.nan, math.inf]))
    assert "mul" in operators(graph)


def test_result_has_the_promoted_dtype():
    graph = same(lambda x: x + torch.zeros(3, dtype=torch.float64), torch.arange(3))
    assert operators(graph) == ["_to_copy"]


def test_written_zeros_are_not_expanded():
    def func(x: Tensor, index: Tensor) -> Tensor:
        return torch.zeros(3).expand(4, 3).index_put((index, index), x, accumulate=True)

    graph = same(func, torch.randn(2), torch.tensor([0, 2]))
    assert operators(graph) == ["full", "index_put"]


def test_non_square_identity_is_not_folded():
    graph = same(lambda x: torch.eye(2, 3) @ x, torch.randn(3, 2))
    assert "mm" in operators(graph)


def test_empty_constants():
    same(lambda x: torch.ones_like(x) * x + torch.ones(0).sum(), torch.ones(0, 3))
    same(lambda x: torch.zeros(0, 3).sum(0) + x, torch.ones(3))


def test_random_numbers_are_not_folded():
    same(lambda x: torch.bernoulli(torch.full((8,), 0.5)) * x, torch.randn(8))


def test_zeros_times_infinity_are_not_folded():
    same(lambda x: x.add(torch.zeros(3), alpha=float("inf")), torch.ones(3))
