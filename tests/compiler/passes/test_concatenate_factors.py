"""A sum of small products becomes one product of concatenated factors."""

import pytest
import torch
from torch import Tensor, nn

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same

PRODUCTS = ("mm", "bmm")


def drawn(*sizes: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Four tensors."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sizes, dtype=dtype, generator=generator) for _ in range(4)]


def left(func, *args, **options) -> int:
    graph = same(func, *args, exact=False, **options)
    return sum(name in PRODUCTS for name in operators(graph))


JOINED = {
    "gradients of a weight": lambda a, b, c, d: a.T @ b + c.T @ d + d.T @ a,
    "rows": lambda a, b, c, d: a @ b.T + c @ d.T + d @ a.T,
    "inner products of other lengths": lambda a, b, c, d: a @ b.T + c[:, :2] @ d.T[:2] + d @ a.T,
    "others between": lambda a, b, c, d: a @ b.T + (c @ c.T).sin() + c @ d.T + a[:, :4] + d @ a.T,
    "a factor twice": lambda a, b, c, d: a @ a.T + a @ b.T + a @ c.T.sin(),
    "batches": lambda a, b, c, d: (
        torch.stack([a, b]) @ torch.stack([c, d]).mT
        + torch.stack([b, c]) @ torch.stack([d, a]).mT
        + torch.stack([c, d]) @ torch.stack([a, b]).mT
    ),
    "a sum of sums": lambda a, b, c, d: (a @ b.T + c @ d.T) + (d @ a.T + (b @ c.T).neg().neg()),
}
LEFT = {
    "two": (2, lambda a, b, c, d: a @ b.T + c @ d.T),
    "read besides": (3, lambda a, b, c, d: (a @ b.T + c @ d.T + (e := d @ a.T), e.sin())),
    "the same twice": (3, lambda a, b, c, d: a @ b.T + c @ d.T + (e := d @ a.T) + e),
    "differences": (3, lambda a, b, c, d: a @ b.T - c @ d.T - d @ a.T),
}


@pytest.mark.parametrize("name", JOINED)
def test_products_become_one(name):
    others = 1 if name == "others between" else 0
    assert left(JOINED[name], *drawn(4, 5)) == 1 + others


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_unchanged(name):
    count, func = LEFT[name]
    assert left(func, *drawn(4, 5)) == count


@pytest.mark.parametrize(("inner", "count"), [(1, 0), (64, 1), (65, 3), (0, 3)])
def test_length_of_inner_products(inner, count):
    assert left(JOINED["gradients of a weight"], *drawn(inner, 3)) == count


@pytest.mark.parametrize("count", [15, 16])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_outer_products(count, batch):
    """A few are as fast by elements, where they fuse with what follows."""

    def func(a, b):
        terms = (a[..., i, None] * b[..., None, :, i] for i in range(count))
        return sum(terms, torch.zeros(()))

    a, b = torch.randn(*batch, 3, 16).mT.mT, torch.randn(*batch, 5, 16)
    assert left(func, a, b, checked=False) == (count >= 16)


def test_a_long_sum_is_several_products():
    """So that factors are freed early."""

    def func(a):
        return sum(a[i].T @ a[i] for i in range(40))

    graph = same(func, torch.randn(40, 32, 3, dtype=torch.float64), exact=False)
    sizes = [
        [*node.args[0].meta["val"].shape]
        for node in graph.graph.nodes
        if node.op == "call_function" and node.target is torch.ops.aten.mm.default
    ]
    assert sizes == [[3, 512], [3, 512], [3, 256]]


def test_half_precision_stays():
    given = drawn(4, 5, dtype=torch.bfloat16)
    assert left(JOINED["rows"], *given, checked=False) == 3


def test_special_numbers():
    a, b, c, d = drawn(4, 5)
    a[0, 0], b[1, 2], c[2, 1] = torch.inf, torch.nan, -0.0
    same(JOINED["rows"], a, b, c, d, exact=False)


def recurrent(weight: Tensor, x: Tensor) -> Tensor:
    state = torch.zeros(x.shape[0], 6, dtype=x.dtype)
    for step in x.unbind(1):
        state = torch.tanh(torch.cat([step, state], 1) @ weight)
    return state.square().sum()


@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize(
    "transform", [tl.grad, tl.hessian, lambda f: tl.vmap(tl.grad(f), (0, None))]
)
def test_gradients_of_unrolled_networks(backend, transform):
    weight, x = torch.randn(9, 6, dtype=torch.float64), torch.randn(5, 20, 3, dtype=torch.float64)
    func = transform(recurrent)
    given = weight.expand(2, 9, 6) * torch.tensor([1.0, 0.5]).view(2, 1, 1), x
    if transform in (tl.grad, tl.hessian):
        given = weight, x
    expected = func(*given)
    torch.testing.assert_close(tl.compile(func, backend=backend, wait=True)(*given), expected)


def test_lstm_cell():
    cell = nn.LSTMCell(3, 4)
    x = torch.randn(7, 5, 3)

    def loss(params):
        state = torch.zeros(5, 4), torch.zeros(5, 4)
        for step in x:
            state = tl.functional_call(cell, params, (step, state))
        return state[0].square().sum()

    params = dict(cell.named_parameters())
    graph = same(tl.grad(loss), {name: each.detach() for name, each in params.items()}, exact=False)
    assert operators(graph).count("mm") + operators(graph).count("addmm") < 7 * 3 + 4
