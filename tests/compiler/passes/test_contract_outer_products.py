"""Inner products of outer products, as in neural tangent kernels."""

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same


def gram(one: Tensor, other: Tensor) -> Tensor:
    return one.reshape(len(one), -1) @ other.reshape(len(other), -1).T


def outer(u: Tensor, v: Tensor) -> Tensor:
    return u[:, :, None] * v[:, None, :]


def vectors(*sizes: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Returns, for each size, a batch of five vectors; then for each size, a batch of seven."""
    return [torch.randn(rows, size, dtype=dtype) for rows in (5, 7) for size in sizes]


CONTRACTED = {
    "columns by rows": lambda u, v, x, y: gram(outer(u, v), outer(x, y)),
    "rows by columns": lambda u, v, x, y: gram(v[:, None] * u[:, :, None], outer(x, y)),
    "computed": lambda u, v, x, y: gram(outer(u.sin(), v.exp()), outer(x.cos(), y * 2)),
    "batches of products": lambda u, v, x, y: gram(u[:, :, None] @ v[:, None], outer(x, y)),
    "twice the same": lambda u, v, x, y: gram(outer(u, v), outer(u, v)) + x.sum() + y.sum(),
    "expanded": lambda u, v, x, y: gram(outer(u[:1].expand_as(u), v), outer(x, y)),
}
LEFT = {
    "one is no outer product": lambda u, v, x, y: gram(outer(u, v), outer(x, y) + 1),
    "factors of other sizes": lambda u, v, x, y: gram(outer(u, v), outer(y, x)),
    "not of the same rows": lambda u, v, x, y: (
        (u[:, :, None] * v[0]).view(5, -1) @ outer(x, y).view(7, -1).T
    ),
    "of the columns": lambda u, v, x, y: outer(u, v).flatten(1).T @ outer(u, v).flatten(1),
    "flattened across": lambda u, v, x, y: (
        outer(u, v).reshape(3, -1) @ outer(u, v).reshape(3, -1).T
    ),
    "two dtypes": lambda u, v, x, y: gram(outer(u.float(), v), outer(x, y)),
}


@pytest.mark.parametrize("name", CONTRACTED)
def test_outer_products_are_not_materialized(name):
    graph = same(CONTRACTED[name], *vectors(3, 4), exact=False)
    assert operators(graph).count("mm") == 2
    assert all(node.meta["val"].dim() < 3 or 1 in node.meta["val"].shape for node in tensors(graph))


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_unchanged(name):
    assert operators(same(LEFT[name], *vectors(3, 4), exact=False)).count("mm") == 1


def test_outer_products_of_size_one_are_unchanged():
    graph = same(CONTRACTED["columns by rows"], *vectors(3, 1), exact=False)
    assert operators(graph).count("mm") == 1


def test_half_precision_stays():
    graph = same(CONTRACTED["columns by rows"], *vectors(3, 4, dtype=torch.bfloat16))
    assert operators(graph).count("mm") == 1


def test_complex_numbers():
    given = vectors(3, 4, dtype=torch.complex128)
    graph = same(CONTRACTED["columns by rows"], *given, exact=False)
    assert operators(graph).count("mm") == 2
    same(lambda u, v, x, y: gram(outer(u, v.conj()), outer(x, y).conj()), *given, exact=False)


def test_tangent_kernel_does_not_materialize_gradients():
    def output(weight: Tensor, x: Tensor) -> Tensor:
        return (weight @ x).sin().sum()

    def kernel(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        gradients = tl.vmap(tl.grad(output), (None, 0))
        return gram(gradients(weight, a), gradients(weight, b))

    graph = same(kernel, torch.randn(6, 5), torch.randn(3, 5), torch.randn(4, 5), exact=False)
    assert max(node.meta["val"].numel() for node in tensors(graph)) <= 30


def tensors(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
