"""Reassociates products of three factors into the order with fewer multiplications.

A Jacobian times a vector, or a weight times the weight before it: (A B) v computes a product of
two matrices, A (B v) computes none.
"""

from typing import Any

from torch.fx import GraphModule, Node

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

# For each product operator, the product of matrices that may be one of its factors.
MATRICES: dict[Any, Any] = {
    aten.mm.default: aten.mm.default,
    aten.bmm.default: aten.bmm.default,
    aten.mv.default: aten.mm.default,
}


def associate_products(graph: GraphModule) -> None:
    """Computes the same sums of products in a different order."""
    for node in graph.graph.nodes:
        if (product := _product(node)) is None:
            continue
        fake = value(node)
        if not fake.dtype.is_floating_point or fake.dtype.itemsize < 4:
            continue  # in half precision the product of two factors may overflow
        if (associated := _associated(node, *product)) is not None:
            replace(node, associated)


def _product(node: Node) -> tuple[Any, Any, Any] | None:
    """Returns the operator and its two factors; (matrix * vector).sum(-1) counts as mv."""
    if node.target in MATRICES:
        return node.target, *node.args  # type: ignore[return-value]
    if not calls(node, aten.sum.dim_IntList) or node.args[2:] or node.args[1] not in ([1], [-1]):
        return None
    summed: Any = node.args[0]
    if not calls(summed, aten.mul.Tensor) or len(summed.users) > 1:
        return None
    matrix, vector = summed.args
    if not is_tensor(vector) or value(vector).dim() != 1 or not calls(matrix, aten.mm.default):
        return None
    if not same_sizes(value(matrix).shape, value(summed).shape):
        return None
    is_same = value(vector).dtype == value(matrix).dtype == value(node).dtype
    return (aten.mv.default, matrix, vector) if is_same else None


def _associated(node: Node, target: Any, one: Any, other: Any) -> Node | None:
    """Rewrites (a b) c as a (b c), or the reverse, if that takes fewer multiplications."""
    if calls(one, MATRICES[target]) and len(one.users) == 1:
        a, b = one.args
        right, left = _multiplications(a, b, other)
        if statically_true(right < left):
            return emit(node, target, a, emit(node, target, b, other))
    elif calls(other, target) and target in MATRICES.values() and len(other.users) == 1:
        b, c = other.args
        right, left = _multiplications(one, b, c)
        if statically_true(left < right):
            return emit(node, target, emit(node, target, one, b), c)
    return None


def _multiplications(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Returns the number of multiplications of a (b c), and of (a b) c."""
    (rows, inner), middle = value(a).shape[-2:], value(b).shape[-1]
    columns = 1 if value(c).dim() == 1 else value(c).shape[-1]
    return inner * columns * (middle + rows), rows * middle * (inner + columns)
