"""Merges views of views into one view."""

from collections.abc import Sequence
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

RESHAPES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
PERMUTES = {aten.t.default, aten.transpose.int, aten.permute.default}


def merge_views(graph: GraphModule) -> None:
    """Merges consecutive views. Exact: only the indexing changes."""
    for node in graph.graph.nodes:
        if not node.args or not is_tensor(source := node.args[0]):
            continue
        if _reshapes(node) and _reshapes(source):
            _reshape(node, source.args[0])
        elif node.target in PERMUTES and source.target in PERMUTES:
            _permute(node, source.args[0], composed(source, node))
        elif calls(node, aten.expand.default) and calls(source, aten.expand.default):
            inner: Any = source.args[0]
            replace(node, emit(node, aten.expand.default, inner, list(value(node).shape)))
        elif calls(node, aten.select.int) and calls(source, aten.expand.default):
            _select(node, source)


def order_of(node: Node) -> list[int]:
    """Returns, for each dimension of a permute, its dimension in the source."""
    dims = value(node).dim()
    order = list(range(dims))
    if node.target is aten.permute.default:
        permutation: Any = node.args[1]
        return [dim % dims for dim in permutation]
    if dims > 1:
        one, other = node.args[1:3] if node.target is aten.transpose.int else (0, 1)
        order[one], order[other] = order[other], order[one]  # type: ignore[index]
    return order


def rows_of(node: Any) -> Any:
    """Returns the matrix that the node views as batches of rows, or None."""
    source = node.args[0] if node.target in RESHAPES else None
    if not is_tensor(source) or value(source).dim() != 2:
        return None
    return source if statically_true(value(source).shape[-1] == value(node).shape[-1]) else None


def with_rows(before: Node, matrix: Node, rows: Sequence[Any]) -> Any:
    """Returns the matrix as batches of rows, by an existing view if there is one."""
    sizes = [*rows, value(matrix).shape[-1]]
    source = matrix.args[:1] if matrix.target in RESHAPES else ()
    for candidate in (*source, *(user for user in matrix.users if user.target in RESHAPES)):
        if (
            is_tensor(candidate)
            and candidate < before
            and same_sizes(value(candidate).shape, sizes)
        ):
            return candidate
    return emit(before, aten.view.default, matrix, sizes)


def is_transpose(node: Any) -> bool:
    """Whether the node transposes a matrix, or each of a batch."""
    if node.target not in PERMUTES or not is_tensor(node):
        return False
    dims = value(node).dim()
    return dims in (2, 3) and order_of(node) == [*range(dims - 2), dims - 1, dims - 2]


def transposed(before: Node, matrix: Any) -> Node:
    """Transposes a matrix by ``t``, as captured linear layers do, so that nodes are shared."""
    if value(matrix).dim() == 2:
        return emit(before, aten.t.default, matrix)
    return emit(before, aten.transpose.int, matrix, -2, -1)


def composed(inner: Node, outer: Node) -> list[int]:
    """Returns the order of two permutes applied one after the other."""
    first = order_of(inner)
    return [first[dim] for dim in order_of(outer)]


def _reshapes(node: Node) -> bool:
    """Whether the node has all elements of its source, in the same order, with other sizes."""
    if node.target in RESHAPES:
        return True
    return calls(node, aten.select.int) and statically_true(
        value(node).numel() == value(node.args[0]).numel()
    )


def _reshape(node: Node, source: Any) -> None:
    sizes = list(value(node).shape)
    if same_sizes(sizes, value(source).shape):
        replace(node, source)
        return
    try:
        replace(node, emit(node, aten.view.default, source, sizes))
    except (RuntimeError, ValueError):
        return  # strides don't allow a single view


def _permute(node: Node, source: Any, order: list[int]) -> None:
    is_whole = order == sorted(order)
    replace(node, source if is_whole else emit(node, aten.permute.default, source, order))


def _select(node: Node, expanded: Node) -> None:
    """Selects from the source: along an expanded dimension all elements are the same."""
    source: Any = expanded.args[0]
    dims, before = value(expanded).dim(), value(source).dim()
    dim: Any = node.args[1]
    of_source = dim % dims - (dims - before)
    if of_source >= 0 and value(source).shape[of_source] != 1:
        return
    if of_source >= 0:
        source = emit(node, aten.select.int, source, of_source, 0)
    if not same_sizes(value(source).shape, value(node).shape):
        source = emit(node, aten.expand.default, source, list(value(node).shape))
    replace(node, source)
