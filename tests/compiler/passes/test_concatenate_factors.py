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
    "inner products of other lengths": lambda a, b, c, d: a @ b.T + c[:, :6] @ d.T[:6] + d @ a.T,
    "others between": lambda a, b, c, d: (
        a @ b.T + (c @ c.T).sin() + c @ d.T + a.repeat(1, 8) + d @ a.T
    ),
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
    sizes = (8, 64) if name == "gradients of a weight" else (64, 8)
    assert left(JOINED[name], *drawn(*sizes)) == 1 + others


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_unchanged(name):
    count, func = LEFT[name]
    assert left(func, *drawn(64, 8)) == count


@pytest.mark.parametrize(("inner", "count"), [(0, 3), (1, 0), (4, 3), (5, 1), (16, 1), (17, 3)])
def test_length_of_inner_products(inner, count):
    assert left(JOINED["gradients of a weight"], *drawn(inner, 100)) == count


@pytest.mark.parametrize(("rows", "count"), [(32, 3), (33, 1)])
def test_small_products_stay(rows, count):
    """A compiler fuses them: those of at most 2 ** 14 multiplications."""
    assert left(JOINED["rows"], *drawn(rows, 16)) == count


@pytest.mark.sweep
def test_a_long_sum_is_several_products():
    """So that factors are freed early."""

    def func(a):
        return sum(a[i].T @ a[i] for i in range(80))

    graph = same(func, torch.randn(80, 16, 40, dtype=torch.float64), exact=False)
    sizes = [
        [*node.args[0].meta["val"].shape]
        for node in graph.graph.nodes
        if node.op == "call_function" and node.target is torch.ops.aten.mm.default
    ]
    assert sizes == [[40, 512], [40, 512], [40, 256]]


def test_half_precision_stays():
    given = drawn(64, 8, dtype=torch.bfloat16)
    assert left(JOINED["rows"], *given, checked=False) == 3


def test_special_numbers():
    a, b, c, d = drawn(64, 8)
    a[0, 0], b[1, 2], c[2, 1] = torch.inf, torch.nan, -0.0
    same(JOINED["rows"], a, b, c, d, exact=False)


def recurrent(weight: Tensor, x: Tensor) -> Tensor:
    state = torch.zeros(x.shape[0], 32, dtype=x.dtype)
    for step in x.unbind(1):
        state = torch.tanh(torch.cat([step, state], 1) @ weight)
    return state.square().mean()


def along(weight: Tensor, x: Tensor) -> Tensor:
    """A Hessian-vector product."""
    return tl.hvp(recurrent, (weight, x), (weight.cos(), x.sin()))[1]


UNROLLED = {
    "grad": tl.grad(recurrent),
    "hvp": along,
    "vmap(grad)": lambda weight, x: tl.vmap(tl.grad(recurrent), (0, None))(
        torch.stack([weight, weight.sin()]), x
    ),
}


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("func", UNROLLED.values(), ids=UNROLLED)
def test_gradients_of_unrolled_networks(backend, func):
    weight, *_ = drawn(48, 32)
    x = torch.stack(drawn(16, 16), 1)
    compiled = tl.compile(func, backend=backend, wait=True)
    torch.testing.assert_close(compiled(weight / 7, x), func(weight / 7, x))


@pytest.mark.sweep
def test_lstm_cell():
    cell = nn.LSTMCell(16, 32)
    x = torch.randn(7, 16, 16)

    def loss(params):
        state = torch.zeros(16, 32), torch.zeros(16, 32)
        for step in x:
            state = tl.functional_call(cell, params, (step, state))
        return state[0].square().sum()

    params = dict(cell.named_parameters())
    graph = same(tl.grad(loss), {name: each.detach() for name, each in params.items()}, exact=False)
    assert operators(graph).count("mm") + operators(graph).count("addmm") < 7 * 3 + 4
