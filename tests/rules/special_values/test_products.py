"""Second derivatives of products and cumulative products at infinities and zeros.

Each second derivative is a sum of products of the other factors. Multiplied out, it is the limit
that differences approach, and no order of differentiation may lose it in 0 * inf.
"""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchlayers as tl

VALUES = (math.inf, -math.inf, 0.0, 2.0, -1.0)
WEIGHT = 0.7

Function = Callable[[Tensor], Tensor]


def multiplied_out(x: Tensor, ends: range) -> Tensor:
    """The second derivative of the products of the first 1, 2, ... elements that `ends` selects,
    times a vector of weights."""
    rows = []
    for i in range(len(x)):
        row = torch.zeros(())
        for j in range(len(x)):
            for end in ends:
                if i != j and max(i, j) <= end:
                    factor = torch.tensor(WEIGHT)
                    for k in range(end + 1):
                        factor = factor if k in (i, j) else factor * x[k]
                    row = row + factor
        rows.append(row)
    return torch.stack(rows)


ORDERS: dict[str, Callable[[Function, Tensor, Tensor], Tensor]] = {
    "jvp(grad)": lambda f, x, v: tl.jvp(tl.grad(f), (x,), (v,))[1],
    "grad(jvp)": lambda f, x, v: tl.grad(lambda x: tl.jvp(f, (x,), (v,))[1])(x),
    "grad(grad)": lambda f, x, v: tl.grad(lambda x: (tl.grad(f)(x) * v).sum())(x),
    "vmap(jvp(grad))": lambda f, x, v: tl.vmap(lambda x, v: tl.jvp(tl.grad(f), (x,), (v,))[1])(
        x[None], v[None]
    )[0],
}
PRODUCTS: dict[str, tuple[Function, Callable[[int], range]]] = {
    "cumprod": (lambda x: x.cumprod(0).sum(), range),
    "cumprod of a column": (lambda x: x[:, None].cumprod(0).sum(), range),
    "prod": (lambda x: x.prod(), lambda size: range(size - 1, size)),
    "prod along a dimension": (lambda x: x[None].prod(1).sum(), lambda size: range(size - 1, size)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_second_derivatives_are_multiplied_out(size, product, order) -> None:
    f, ends = PRODUCTS[product]
    every = 1 if size < 4 else 7 if size == 4 else 211
    for values in itertools.islice(itertools.product(VALUES, repeat=size), 0, None, every):
        x = torch.tensor(values)
        found = order(f, x, torch.full((size,), WEIGHT))
        expected = multiplied_out(x, ends(size))
        known = ~expected.isnan()  # what is factored out may be right where a difference is nan
        torch.testing.assert_close(found[known], expected[known])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9])
def test_derivatives_of_logcumsumexp(size) -> None:
    x = torch.linspace(-1, 2, size, dtype=torch.float64)

    def written_out(x: Tensor) -> Tensor:
        return torch.stack([x[: i + 1].exp().sum().log() * (i + 1) for i in range(size)]).sum()

    def ours(x: Tensor) -> Tensor:
        return (x.logcumsumexp(0) * torch.arange(1, size + 1)).sum()

    torch.testing.assert_close(tl.grad(ours)(x), tl.grad(written_out)(x))
    for hessian in (
        tl.jacfwd(tl.grad(ours)),
        tl.jacrev(tl.jacfwd(ours)),
        tl.jacfwd(tl.jacfwd(ours)),
    ):
        torch.testing.assert_close(hessian(x), tl.hessian(written_out)(x))
