"""Expands small products into multiplications and sums, which a compiler fuses with other nodes."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.hoist_unbatched import LANES, TIMES, in_memory, is_fused
from torchlayers.core.device import META, is_on_host
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import emit, is_tensor, replace, statically_true, value

# The number of multiplications that take as long as a BLAS call; docs/compile-passes.md.
SMALL = 1 << 14
FEW = 4  # A sum of so few terms is fused without a separate loop.


def expand_small(graph: GraphModule) -> None:
    """Computes the same sums, added in a different order."""
    for node in graph.graph.nodes:
        if node.target in EXPANSIONS and is_tensor(node):
            fake = value(node)
            if not is_on_host(fake) or not (fake.is_floating_point() and fake.itemsize >= 4):
                continue  # the product of half-precision matrices accumulates in float32
            product = EXPANSIONS[node.target](node, *node.args)
            if product is not None:
                replace(node, product)


def _matrices(node: Node, one: Any, other: Any) -> Node | None:
    (rows, inner), columns = value(one).shape, value(other).shape[1]
    is_few = statically_true(inner <= FEW)
    if not is_few and not statically_true(rows * inner * columns <= SMALL):
        return None
    one = emit(node, aten.unsqueeze.default, one, 2)
    other = _rows_in_memory(node, other, rows if is_few else 1)
    other = emit(node, aten.unsqueeze.default, other, 0)
    return _summed(node, one, other, 1)


def _batched(node: Node, one: Any, other: Any) -> Node | None:
    (batch, rows, inner), columns = value(one).shape, value(other).shape[2]
    is_few = statically_true(inner <= FEW)
    if not is_few and not statically_true(batch * rows * inner * columns <= SMALL):
        return None
    one = emit(node, aten.unsqueeze.default, one, 3)
    other = _rows_in_memory(node, other, rows if is_few else 1)
    other = emit(node, aten.unsqueeze.default, other, 1)
    return _summed(node, one, other, 2)


def _rows_in_memory(node: Node, factor: Node, times: int) -> Node:
    """Returns the factor with its rows contiguous, if it is read often enough.

    Each row of the product reads the whole factor, as many numbers at a time as are adjacent.
    """
    fake = value(factor)
    is_read_often = not statically_true(times < TIMES) and not statically_true(
        fake.shape[-1] < LANES
    )
    if not is_read_often or fake.stride(-1) == 1 or 0 in fake.stride():
        return factor
    return in_memory(node, factor, list(torch.empty(fake.shape, device=META).stride()))


def _vector(node: Node, matrix: Any, vector: Any) -> Node | None:
    """A matrix that only this product reads is fused and needs no memory, whatever its size."""
    is_read_here = is_fused(matrix) and len(matrix.users) == 1
    if not is_read_here and not statically_true(value(matrix).numel() <= SMALL):
        return None
    return _summed(node, matrix, vector, 1)


def _summed(node: Node, one: Node, other: Node, dim: int) -> Node:
    product = emit(node, aten.mul.Tensor, one, other)
    return emit(node, aten.sum.dim_IntList, product, [dim])


def _with_bias(
    product: Callable[[Node, Any, Any], Node | None], operator: Any = None
) -> Callable[..., Node | None]:
    """Expands ``product`` with a bias. ``operator`` computes a large product, if given."""

    def expanded(node: Node, bias: Any, one: Any, other: Any) -> Node | None:
        summed = product(node, one, other)
        if summed is None and operator is not None:
            summed = emit(node, operator, one, other)
        if summed is None:
            return None
        beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
        if alpha != 1:
            summed = emit(node, aten.mul.Tensor, summed, alpha)
        if beta == 0:
            return summed
        if beta != 1:
            bias = emit(node, aten.mul.Tensor, bias, beta)
        return emit(node, aten.add.Tensor, summed, bias)

    return expanded


EXPANSIONS: dict[Any, Callable[..., Node | None]] = {
    aten.mm.default: _matrices,
    aten.bmm.default: _batched,
    aten.mv.default: _vector,
    aten.dot.default: lambda node, one, other: _summed(node, one, other, 0),
    aten.addmm.default: _with_bias(_matrices),
    # Otherwise Inductor copies the bias into the result first.
    aten.baddbmm.default: _with_bias(_batched, aten.bmm.default),
    aten.addmv.default: _with_bias(_vector),
}
