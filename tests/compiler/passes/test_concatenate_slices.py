"""Gradients of slices are concatenated instead of being added up as tensors of mostly zeros."""

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same

X = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
OF_SLICES = ("select_backward", "slice_backward")


def gradient(func):
    return tl.grad(lambda x: func(x).square().sum())


def left(func, x: Tensor = X) -> int:
    graph = same(gradient(func), x, exact=False)
    return sum(name in OF_SLICES for name in operators(graph))


def steps(x: Tensor, dim: int, places: "list[int]") -> Tensor:
    result = x.select(dim, 0) * 0
    for i in places:
        result = (result + x.select(dim, i).sin()).cos()
    return result


CONCATENATED = {
    "every row": lambda x: steps(x, 0, [0, 1, 2, 3]),
    "in another order": lambda x: steps(x, 1, [3, 0, 5, 1, 2, 4]),
    "from the end": lambda x: steps(x, -1, [-1, -2, -3, -4, -5]),
    "but the first": lambda x: steps(x, 0, [1, 2, 3]) - x[0] * 0,
    "but the last": lambda x: x[0].sin() * x[1].cos() * x[2],
    "but one between": lambda x: x[:, 0].sin() * x[:, 1].cos() * x[:, 3] * x[:, 5],
    "slices": lambda x: x[:2].sin() * x[2:].cos(),
    "slices of other lengths": lambda x: torch.cat([x[:1].sin(), x[1:3].cos(), x[3:].exp()]),
    "slices and rows": lambda x: x[0].sin() * x[1:3].cos() * x[3],
    "rows that are read twice": lambda x: x[0].sin() * x[1].cos() * x[0].exp() * x[2] * x[3],
    "of two dimensions": lambda x: x[0, :3].sin() * x[1, 3:] * x[2, :3] * x[3, 3:].cos() * x[0, 3:],
    "and what is read whole": lambda x: x.sin() + x[0] * x[1] * x[2].cos() * x[3],
    "chunks": lambda x: torch.mul(*x.chunk(2, 1)).sin(),
    "parts": lambda x: (lambda a, b, c: a * b.sin() + c.cos())(*x.unflatten(1, (3, 2)).unbind(1)),
}
LEFT = {
    "slices that overlap": lambda x: x[:3].sin() * x[1:].cos(),
    "few": lambda x: x[:, 0].sin() * x[:, 3].cos(),
    "one row": lambda x: x[0].sin() + x.cos(),
    "every second": lambda x: x[:, ::2].sin() * x[:, 1::2].cos(),
}


@pytest.mark.parametrize("name", CONCATENATED)
def test_concatenated(name):
    assert left(CONCATENATED[name]) == (3 if name == "of two dimensions" else 0)  # of one row each


@pytest.mark.parametrize("name", LEFT)
def test_left_as_they_are(name):
    func = LEFT[name]
    before = operators(tl.compile(gradient(func), backend="replay").lower(X).graph)
    assert left(func) == sum(name in OF_SLICES for name in before) > 0


@pytest.mark.sweep
@pytest.mark.parametrize(
    "func", [*CONCATENATED.values(), *LEFT.values()], ids=[*CONCATENATED, *LEFT]
)
@pytest.mark.parametrize("strides", ["contiguous", "transposed"])
def test_special_numbers_and_strides(func, strides):
    special = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, 7.0, -1e-310]
    x = torch.tensor(special, dtype=torch.float64).repeat(15).view(X.shape)
    x = x.transpose(0, 2).contiguous().transpose(0, 2) if strides == "transposed" else x
    same(gradient(func), x, exact=False)


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", ["every row", "slices and rows", "of two dimensions", "parts"])
@pytest.mark.parametrize("in_dim", [None, 0, 2])
def test_compiled(name, in_dim):
    func = gradient(CONCATENATED[name])
    x = X
    if in_dim is not None:
        func, x = tl.vmap(func, in_dim, in_dim), torch.stack([X, X.sin()], in_dim)
    torch.testing.assert_close(tl.compile(func, wait=True)(x), func(x))


def test_second_derivatives():
    func = CONCATENATED["every row"]
    compiled = tl.compile(tl.hessian(lambda x: func(x).sum()), backend="replay")
    torch.testing.assert_close(compiled(X), tl.hessian(lambda x: func(x).sum())(X))


@pytest.mark.full
def test_many_steps_make_one_whole_gradient():
    graph = same(gradient(lambda x: steps(x, 0, [*range(200)])), torch.randn(200, 3), exact=False)
    whole = [
        node
        for node in graph.graph.nodes
        if node.op == "call_function" and node.meta["val"].shape == (200, 3)
    ]
    assert len(whole) <= 2
