"""Rewrites inner products of outer products as products of inner products.

A weight's gradient for one sample is an outer product of a cotangent and an input: u vᵀ. Gradient
kernels contract one sample's gradient with another's, (u vᵀ) · (x yᵀ) = (u · x) (v · y), which
needs neither matrix.
"""

from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.merge_views import PERMUTES, RESHAPES, order_of
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
    calls,
    emit,
    is_tensor,
    replace,
    same_sizes,
    statically_true,
    value,
)


class Outer(NamedTuple):
    """The factors of one outer product per row: [rows, m, 1] and [rows, 1, n]."""

    left: Node
    right: Node


def contract_outer(graph: GraphModule) -> None:
    """Computes the same sums of products in a different order."""
    for node in graph.graph.nodes:
        if not calls(node, aten.mm.default) or value(node).dtype.itemsize < 4:
            continue  # in half precision one of the factors may overflow
        one, other = _flattened(node.args[0]), _flattened(_flipped(node.args[1]))
        if one is None or other is None:
            continue
        if statically_true(value(one.left).shape[1] == value(other.left).shape[1]):
            left, right = (_inner(node, *pair) for pair in zip(one, other, strict=True))
            replace(node, emit(node, aten.mul.Tensor, left, right))


def _flipped(matrix: Any) -> Any:
    """Returns the matrix that this one is the transpose of, or None."""
    if matrix.target in PERMUTES and order_of(matrix) == [1, 0]:
        return matrix.args[0]
    return None


def _flattened(matrix: Any) -> Outer | None:
    """Returns the factors of the outer products that are flattened into the matrix's rows."""
    if not is_tensor(matrix) or matrix.target not in RESHAPES:
        return None
    product: Any = matrix.args[0]
    factors: Any = product.args
    if not calls(product, aten.mul.Tensor) or not all(map(is_tensor, factors)):
        return None
    if any(value(factor).dtype != value(matrix).dtype for factor in factors):
        return None
    sizes = [*value(product).shape]
    if len(sizes) != 3 or not same_sizes(value(matrix).shape, [sizes[0], sizes[1] * sizes[2]]):
        return None
    rows, m, n = sizes
    shapes = [[*value(factor).shape] for factor in factors]
    for left, right in ((0, 1), (1, 0)):
        are_outer = same_sizes(shapes[left], [rows, m, 1]) and same_sizes(
            shapes[right], [rows, 1, n]
        )
        if are_outer and m > 1 and n > 1:
            return Outer(factors[left], factors[right])
    return None


def _inner(before: Node, one: Node, other: Node) -> Node:
    """Returns the inner products of each row of one with each row of the other."""
    matrices = []
    for factor in (one, other):
        axis = 1 if value(factor).shape[1] == 1 else 2
        matrices.append(emit(before, aten.squeeze.dim, factor, axis))
    flipped = emit(before, aten.permute.default, matrices[1], [1, 0])
    return emit(before, aten.mm.default, matrices[0], flipped)
