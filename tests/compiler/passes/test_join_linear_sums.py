"""Sums of a linear function's results: f(x) + f(y) becomes f(x + y)."""

import pytest
import torch
from torch import Tensor

from tests.compiler.passes.simplified import operators, same

PRODUCTS = ("mm", "bmm", "mv")
JOINED = {
    "left factors": lambda a, b, w: a @ w + b @ w,
    "right factors": lambda a, b, w: w @ a + w @ b,
    "of three": lambda a, b, w: a @ w + b @ w + b.sin() @ w,
    "with others between": lambda a, b, w: a @ w + w.cos() + b @ w,
    "transposed": lambda a, b, w: (a @ w).T + (b @ w).T,
    "elementwise": lambda a, b, w: (a @ w) * w + w * (b @ w),
    "a slope": lambda a, b, w: slope(a @ w, w) + slope(b @ w, w),
    "by a vector": lambda a, b, w: a @ w[0] + b @ w[0],
    "in batches": lambda a, b, w: torch.stack([a, b]) @ w + torch.stack([b, b.sin()]) @ w,
    "read twice": lambda a, b, w: twice(a @ w, b @ w, w),
    "flipped": lambda a, b, w: (a @ w).flip(0) + (b @ w).flip(0),
    "two deep": lambda a, b, w: slope(a @ w, w) @ w + slope(b @ w, w) @ w,
}
LEFT = {
    "other factors": lambda a, b, w: a @ w + b @ w.sin(),
    "read besides": lambda a, b, w: (a @ w + b @ w, (a @ w).sin()),
    "no linear function": lambda a, b, w: (a @ w).sin() + (b @ w).sin(),
    "other slopes": lambda a, b, w: slope(a @ w, w) + slope(b @ w, a),
    "broadcast": lambda a, b, w: a @ w + (b[:1] @ w),
    "one that is scaled": lambda a, b, w: torch.add(a @ w, b @ w, alpha=2),
    "parts": lambda a, b, w: (a @ w)[:2] + (b @ w)[:2],
    "squares": lambda a, b, w: (a @ w).square() + (b @ w).square(),
}


def slope(x: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward(x, y)


def twice(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Reads each product twice, as the gradients of a weight and a bias read one cotangent."""
    return x.sum(0) + y.sum(0), x * w + y * w


def left(func, dtype: torch.dtype = torch.float64) -> int:
    given = [torch.randn(4, 4, dtype=dtype) for _ in range(3)]
    graph = same(func, *given, exact=False, checked=dtype == torch.float64)
    return sum(name in PRODUCTS for name in operators(graph))


@pytest.mark.parametrize("name", JOINED)
def test_products_are_joined_into_one(name):
    assert left(JOINED[name]) == (2 if name == "two deep" else 1)


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_unchanged(name):
    assert left(LEFT[name]) == 2


def test_half_precision_stays():
    assert left(JOINED["left factors"], torch.bfloat16) == 2


def test_sum_of_equal_products():
    assert left(lambda a, b, w: a @ w + a @ w) == 1
