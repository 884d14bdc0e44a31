"""Contractions that reuse a product with the transposed weight: Laplacians, curvatures."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, softplus

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same

PRODUCTS = ("mm", "addmm", "bmm", "mv", "addmv")
ACTIVATIONS = {
    "tanh": torch.tanh,
    "sin": torch.sin,
    "sigmoid": torch.sigmoid,
    "softplus": softplus,
    "gelu": gelu,
    "exp": torch.exp,
    "scaled": lambda x: -torch.sin(3 * x) / 4,
}
CURVATURES = {
    "direction last": lambda f, x, v: tl.jvp(tl.grad(f), (x,), (v,))[1] @ v,
    "direction first": lambda f, x, v: v @ tl.jvp(tl.grad(f), (x,), (v,))[1],
    "summed": lambda f, x, v: (tl.jvp(tl.grad(f), (x,), (v,))[1] * v).sum(),
    "reverse over reverse": lambda f, x, v: tl.vjp(tl.grad(f), x)[1](v)[0] @ v,
    "the trace": lambda f, x, v: tl.hessian(f)(x).trace(),
    "the sum of the diagonal": lambda f, x, v: tl.hessian(f)(x).diagonal().sum(),
    "reverse over forward": lambda f, x, v: tl.grad(lambda x: tl.jvp(f, (x,), (v,))[1])(x) @ v,
}
BATCHES = {"one point": None, "one direction": (0, None), "a direction each": (0, 0)}


def network(activation, layers: int):
    torch.manual_seed(0)
    weights = [torch.randn(6, 3 if i == 0 else 6, dtype=torch.float64) / 2 for i in range(layers)]
    bias, last = torch.randn(2, 6, dtype=torch.float64)

    def energy(x: Tensor) -> Tensor:
        for weight in weights:
            x = activation(torch.nn.functional.linear(x, weight, bias))
        return x @ last

    return energy


def simplified(curvature, energy, batch) -> torch.fx.GraphModule:
    points, directions = torch.randn(2, 5, 3, dtype=torch.float64)
    if batch is None:
        return same(lambda x, v: curvature(energy, x, v), points[0], directions[0], exact=False)
    func = tl.vmap(lambda x, v: curvature(energy, x, v), batch)
    given = directions if batch[1] == 0 else directions[0]
    return same(func, points, given, exact=False)


def products(graph: torch.fx.GraphModule) -> int:
    return sum(name in PRODUCTS for name in operators(graph))


# Each activation and each curvature with one of the other; in full, all pairs.
CASES = [
    pytest.param(
        activation,
        curvature,
        batch,
        marks=() if activation == "tanh" or curvature == "direction last" else pytest.mark.full,
    )
    for activation, curvature, batch in itertools.product(ACTIVATIONS, CURVATURES, BATCHES)
]


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(("activation", "curvature", "batch"), CASES)
def test_reverse_pass_through_tangents_adds_no_products(activation, curvature, batch):
    """Each layer adds three products: for its value, tangent and cotangent. Four are captured."""
    counts = [
        products(
            simplified(
                CURVATURES[curvature], network(ACTIVATIONS[activation], layers), BATCHES[batch]
            )
        )
        for layers in (2, 3, 4)
    ]
    assert [more - less for less, more in itertools.pairwise(counts)] == [3, 3]


# The product a w is contracted with f, so that the other product, f wᵀ, can replace it.
CONTRACTED = {
    "a sum": lambda a, f, w, x: ((a @ w) * f).sum(-1),
    "of all": lambda a, f, w, x: ((a @ w) * f).sum(),
    "first": lambda a, f, w, x: (f * (a @ w)).sum(1),
    "beside another": lambda a, f, w, x: ((a @ w) * f + x).sum(-1),
    "after another": lambda a, f, w, x: (x - (a @ w) * f).sum(-1),
    "minus another": lambda a, f, w, x: ((a @ w) * f - x).sum(-1),
    "both minus": lambda a, f, w, x: (x - (x - (a @ w) * f)).sum(-1),
    "negative": lambda a, f, w, x: (-(a @ w) * f + x * 2).sum(-1),
    "scaled": lambda a, f, w, x: ((a @ w) / 3 * f * 2 - x).sum(-1),
    "deep": lambda a, f, w, x: (x + (x - ((a @ w) * f - x.sin()))).sum(-1),
    "added product": lambda a, f, w, x: torch.addcmul((a @ w) * f, x, x).sum(-1),
}
LEFT = {
    "read besides": lambda a, f, w, x: read_twice(a @ w, f),
    "squared": lambda a, f, w, x: squared((a @ w) * f),
    "added to itself": lambda a, f, w, x: doubled((a @ w) * f),
    "of columns": lambda a, f, w, x: ((a @ w) * f).sum(0),
    "of another weight": lambda a, f, w, x: ((a @ w) * f * x).sum(-1),
    "broadcast": lambda a, f, w, x: ((a @ w) * f + x[None, :1]).sum(-1),
    "divided by": lambda a, f, w, x: (f / (a @ w)).sum(-1),
    "in the bounds": lambda a, f, w, x: torch.ops.aten.tanh_backward(f, a @ w).sum(-1),
}


def read_twice(product: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    return (product * f).sum(-1), product.exp()


def squared(term: Tensor) -> Tensor:
    return (term * term).sum(-1)


def doubled(term: Tensor) -> Tensor:
    return (term + term).sum(-1)


def contracted(func, dtype: torch.dtype = torch.float64) -> torch.fx.GraphModule:
    def both(a: Tensor, f: Tensor, w: Tensor, x: Tensor):
        return f @ w.T, func(a, f, w, x)

    shapes = (7, 4), (7, 5), (4, 5), (7, 5)
    return same(both, *(torch.randn(shape, dtype=dtype) for shape in shapes), exact=False)


@pytest.mark.parametrize("name", CONTRACTED)
def test_two_products_become_one(name):
    assert products(contracted(CONTRACTED[name])) == 1


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_unchanged(name):
    assert products(contracted(LEFT[name])) == 2


def test_broadcast_bias_is_summed_like_its_product():
    """The added term is one column that is broadcast over all five, and so is the weight."""

    def func(a: Tensor, f: Tensor, w: Tensor, x: Tensor):
        return f.expand(7, 5) @ w.T, (torch.addcmul(a @ w, x, x) * f).sum()

    shapes = (7, 4), (7, 1), (4, 5), (7, 1)
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    assert products(same(func, *given, exact=False)) == 1


def test_weight_shared_across_batches_is_unchanged():
    def func(a: Tensor, f: Tensor, w: Tensor):
        return f @ w.T, ((a @ w) * f).sum()

    shapes = (3, 7, 4), (7, 5), (4, 5)
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    assert products(same(func, *given, exact=False)) == 2


def test_half_precision_stays():
    assert products(contracted(CONTRACTED["a sum"], dtype=torch.bfloat16)) == 2


def test_batches_of_products():
    def func(a: Tensor, f: Tensor, w: Tensor):
        return f @ w.mT, ((a @ w) * f).sum(-1)

    shapes = (3, 7, 4), (3, 7, 5), (3, 4, 5)
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    assert products(same(func, *given, exact=False)) == 1


# A sum of a product's diagonal, and how many products remain.
TRACES = {
    "trace": (lambda a, w: (a @ w).trace(), 0),
    "transposed": (lambda a, w: (a @ w).T.trace(), 0),
    "diagonal": (lambda a, w: (a @ w).diagonal().sum(), 0),
    "of a batch": (lambda a, w: (a[None] @ w[None]).diagonal(0, -2, -1).sum(-1), 0),
    "beside the diagonal": (lambda a, w: (a @ w).diagonal(1).sum(), 1),
    "read besides": (lambda a, w: read_besides(a @ w), 1),
    "of rows of a batch": (
        lambda a, w: (torch.stack([a, -a]) @ w).diagonal(dim1=-1, dim2=-2).sum(-1),
        0,
    ),
    "of no square": (lambda a, w: (a @ w[:, :3]).trace(), 1),
    "across the batch": (lambda a, w: (torch.stack([a] * 4) @ w).diagonal().sum(-1), 1),
}


def read_besides(product: Tensor) -> tuple[Tensor, Tensor]:
    return product.trace(), product.exp()


@pytest.mark.parametrize("name", TRACES)
def test_traces_of_products(name):
    func, left = TRACES[name]
    a, w = torch.randn(4, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    assert products(same(func, a, w, exact=False)) == left


def test_later_values_are_not_reused():
    def func(a: Tensor, f: Tensor, w: Tensor):
        contracted = ((a @ w) * f).sum(-1)
        return contracted, f @ w.T * contracted[:, None]

    shapes = (7, 4), (7, 5), (4, 5)
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    assert products(same(func, *given, exact=False)) == 2


def test_recomputed_values_are_not_reused_outside_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    def energy(x: Tensor) -> Tensor:
        hidden = checkpoint(lambda x: torch.tanh(x @ W).tanh() @ W.T, x, use_reentrant=False)
        return hidden.sin().sum()

    W = torch.randn(3, 3, dtype=torch.float64)
    x, v = torch.randn(2, 3, dtype=torch.float64)
    same(lambda x, v: tl.vjp(tl.grad(energy), x)[1](v)[0] @ v, x, v, exact=False)
