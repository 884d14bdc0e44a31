"""Jacobians per sample of solves with factorizations and of sums over pairs: batches inside a
batch."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, linalg
from torch.testing import assert_close

import torchlayers as tl
from tests.rules.batching.samples import PIVOTED, values

FACTORS, RIGHT = linalg.lu_factor(PIVOTED), values(2, 5, 3, 4)
ROWS = values(4, 3) + 1

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "det": linalg.det,
    "slogdet": lambda x: linalg.slogdet(x)[1],
    "inv": linalg.inv,
    "solve": lambda x: linalg.solve(x, RIGHT[0, 0]),
    "lu_factor": lambda x: linalg.lu_factor(x)[0],
    "lu_solve": lambda x: linalg.lu_solve(*linalg.lu_factor(x), RIGHT[0, 0]),
    "cdist": lambda x: torch.cdist(x, ROWS),
    "cdist, of one norm": lambda x: torch.cdist(x, ROWS, p=1.0),
    "cdist, of itself": lambda x: torch.cdist(x, x.sin() + 1),
}
JACOBIANS = (tl.jacrev, tl.jacfwd)


@pytest.mark.parametrize("jacobian", JACOBIANS, ids=lambda jacobian: jacobian.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobian_of_each_sample(name: str, jacobian: Callable[..., Any]) -> None:
    f = FUNCTIONS[name]
    expected = torch.stack([torch.autograd.functional.jacobian(f, x) for x in PIVOTED])
    assert_close(jacobian(f)(PIVOTED[0]), expected[0])
    assert_close(tl.vmap(jacobian(f))(PIVOTED), expected)


@pytest.mark.parametrize("outer", JACOBIANS, ids=lambda jacobian: jacobian.__name__)
@pytest.mark.parametrize("inner", JACOBIANS, ids=lambda jacobian: jacobian.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessian_of_each_sample(
    name: str, inner: Callable[..., Any], outer: Callable[..., Any]
) -> None:
    def f(x: Tensor) -> Tensor:
        return FUNCTIONS[name](x).sin().sum()

    found = tl.vmap(outer(inner(f)))(PIVOTED)
    assert_close(found, torch.stack([central_differences(tl.grad(f), x) for x in PIVOTED]))


def central_differences(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The Jacobian by fourth-order differences, to about eight digits."""

    def slope(direction: Tensor) -> Tensor:
        near, far = (f(x + h * direction) - f(x - h * direction) for h in (1e-3, 2e-3))
        return (8 * near - far) / 12e-3

    directions = torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    return torch.stack([slope(each) for each in directions], -1).reshape(*x.shape, *x.shape)


@pytest.mark.parametrize(("left", "adjoint"), [*product((True, False), repeat=2)])
def test_solutions_of_samples_with_a_batch_each(left: bool, adjoint: bool) -> None:
    right = RIGHT if left else RIGHT.mT

    def solve(lu: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
        return linalg.lu_solve(lu, pivots, b, left=left, adjoint=adjoint)

    expected = [[solve(*(t[i] for t in FACTORS), b) for b in right[i]] for i in range(2)]
    found = tl.vmap(tl.vmap(solve, in_dims=(None, None, 0)))(*FACTORS, right)
    assert_close(found, torch.stack([torch.stack(row) for row in expected]))
