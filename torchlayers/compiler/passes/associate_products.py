"""A product of three factors, in the order that takes fewer multiplications.

A Jacobian that is multiplied with a vector, a weight with the weight before it: (A B) v takes a
product of matrices, A (B v) takes none.
"""

from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.fx.nodes import (
    aten,
    calls,
    certainly,
    emit,
    is_tensor,
    replace,
    same_sizes,
    value,
)

# Which product of matrices may be a factor of each.
MATRICES: dict[Any, Any] = {
    aten.mm.default: aten.mm.default,
    aten.bmm.default: aten.bmm.default,
    aten.mv.default: aten.mm.default,
}


def associate_products(graph: GraphModule) -> None:
    """The same sums of products, multiplied and added in another order."""
    for node in graph.graph.nodes:
        if (product := _product(node)) is None:
            continue
        told = value(node)
        if not told.dtype.is_floating_point or told.dtype.itemsize < 4:
            continue  # in half precision a product of two may be out of range
        if (associated := _associated(node, *product)) is not None:
            replace(node, associated)


def _product(node: Node) -> tuple[Any, Any, Any] | None:
    """The operator and its factors; sums of rows by one vector are such a product."""
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
    """(a b) c as a (b c), or the other way round."""
    if calls(one, MATRICES[target]) and len(one.users) == 1:
        a, b = one.args
        right, left = _multiplications(a, b, other)
        if certainly(right < left):
            return emit(node, target, a, emit(node, target, b, other))
    elif calls(other, target) and target in MATRICES.values() and len(other.users) == 1:
        b, c = other.args
        right, left = _multiplications(one, b, c)
        if certainly(left < right):
            return emit(node, target, emit(node, target, one, b), c)
    return None


def _multiplications(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Of a (b c), and of (a b) c."""
    (rows, inner), middle = value(a).shape[-2:], value(b).shape[-1]
    columns = 1 if value(c).dim() == 1 else value(c).shape[-1]
    return inner * columns * (middle + rows), rows * middle * (inner + columns)
