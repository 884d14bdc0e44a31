"""Rewrites the trace of a product as an inner product of its factors.

tr(A B) is the sum of A times Bᵀ, element by element. A Laplacian, written as the trace of a
Hessian, then needs no last product, and contract_adjoint.py can rewrite the others.
"""

from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.merge_views import is_transpose, rows_of, transposed, with_rows
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
    calls,
    emit,
    is_tensor,
    replace,
    statically_true,
    value,
)


def contract_traces(graph: GraphModule) -> None:
    """Computes the same sums of products in a different order."""
    for node in graph.graph.nodes:
        if (matrix := _traced(node)) is None:
            continue
        rows, columns = value(matrix).shape[-2:]
        if not statically_true(rows == columns):
            continue
        while is_transpose(matrix) and len(matrix.users) == 1:
            matrix = matrix.args[0]
        of_rows = rows_of(matrix)
        product = matrix if of_rows is None else of_rows
        is_product = calls(product, aten.mm.default, aten.bmm.default)
        if not is_product or len(matrix.users) > 1 or len(product.users) > 1:
            continue
        left, right = product.args
        if product is not matrix:
            left = with_rows(node, left, value(matrix).shape[:-1])
        products = emit(node, aten.mul.Tensor, left, transposed(node, right))
        replace(node, emit(node, aten.sum.dim_IntList, products, [-2, -1]))


def _traced(node: Node) -> Any:
    """Returns the matrix, or batch of matrices, whose diagonal the node sums, or None."""
    dtype = value(node).dtype if is_tensor(node) else None
    if dtype is None or not dtype.is_floating_point or dtype.itemsize < 4:
        return None  # half precision would round at a different point
    if calls(node, aten.trace.default):
        return node.args[0]
    if not calls(node, aten.sum.default, aten.sum.dim_IntList) or len(node.args) > 2:
        return None
    diagonal: Any = node.args[0]
    if not calls(diagonal, aten.diagonal.default) or len(diagonal.users) > 1:
        return None
    matrix, *options = diagonal.args
    dims = value(matrix).dim()
    defaults: list[Any] = [0, 0, 1]
    place: list[Any] = [*options, *defaults[len(options) :]]
    offset, axes = place[0], place[1:]
    of_last_two = {axis % dims for axis in axes} == {dims - 2, dims - 1}
    over: Any = node.args[1] if len(node.args) > 1 else None
    of_diagonal = dims == 2 if not over else [dim % (dims - 1) for dim in over] == [dims - 2]
    is_same = value(matrix).dtype == dtype
    return matrix if of_last_two and offset == 0 and of_diagonal and is_same else None
