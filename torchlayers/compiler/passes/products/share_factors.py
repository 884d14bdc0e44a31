"""Shrinks products whose factors repeat in the batch, in rows or in the summed dimension.

Where a factor does not depend on the batch, they become fewer, larger products.
"""

from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.merge_views import transposed
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
    emit,
    is_tensor,
    replace,
    same_sizes,
    statically_true,
    value,
)


def share_factors(graph: GraphModule) -> None:
    """Replaces bmm with mm where the batch shares a factor, and outer products with mul.

    The same multiplications and sums; a library may add in another order where sizes differ.
    """
    for node in graph.graph.nodes:
        if node.target in _REWRITES and is_tensor(node):
            product = _REWRITES[node.target](node, *node.args[:2])
            if product is not None:
                replace(node, product)
        elif node.target is aten.baddbmm.default and not node.kwargs:
            bias, *factors = node.args
            if (product := _batched(node, *factors)) is not None:
                replace(node, emit(node, aten.add.Tensor, product, bias))


def _matrices(node: Node, one: Any, other: Any) -> Node | None:
    """Rewrites a column times a row, and a product with a single or repeated row or column."""
    (rows, inner), columns = value(one).shape, value(other).shape[1]
    if inner == 1:
        return emit(node, aten.mul.Tensor, one, other)
    if 0 in (rows, inner, columns):
        return None
    if _is_one(rows, value(one).stride(0)):
        row = emit(node, aten.select.int, one, 0, 0)
        product = emit(node, aten.mv.default, transposed(node, other), row)
        product = emit(node, aten.unsqueeze.default, product, 0)
    elif _is_one(columns, value(other).stride(1)):
        product = emit(node, aten.mv.default, one, emit(node, aten.select.int, other, 1, 0))
        product = emit(node, aten.unsqueeze.default, product, 1)
    else:
        return None
    if same_sizes(value(product).shape, [rows, columns]):
        return product
    return emit(node, aten.expand.default, product, [rows, columns])


def _is_one(size: Any, stride: Any) -> bool:
    """Whether there is a single element, perhaps expanded."""
    return statically_true(size == 1) or statically_true(stride == 0)


def _batched(node: Node, one: Any, other: Any) -> Node | None:
    (batch, rows, inner), columns = value(one).shape, value(other).shape[2]
    if inner == 1:
        return emit(node, aten.mul.Tensor, one, other)
    if 0 in (batch, rows, inner, columns):
        return None
    sizes = [batch, rows, columns]
    if (product := _of_repeated(node, one, other)) is not None:
        return emit(node, aten.expand.default, product, sizes)
    of_one, of_other = _shared(node, one), _shared(node, other)
    if of_one is not None and of_other is not None:
        product = emit(node, aten.mm.default, of_one, of_other)
        product = emit(node, aten.unsqueeze.default, product, 0)
        return emit(node, aten.expand.default, product, sizes)
    if of_other is not None:
        stacked = _viewed(node, one, [batch * rows, inner])
        if stacked is not None:
            product = emit(node, aten.mm.default, stacked, of_other)
            return emit(node, aten.view.default, product, sizes)
    if of_one is not None:
        flipped = emit(node, aten.permute.default, other, [0, 2, 1])
        stacked = _viewed(node, flipped, [batch * columns, inner])
        if stacked is not None:
            product = emit(node, aten.mm.default, stacked, transposed(node, of_one))
            product = emit(node, aten.view.default, product, [batch, columns, rows])
            return emit(node, aten.permute.default, product, [0, 2, 1])
    return None


def _of_repeated(node: Node, one: Node, other: Node) -> Node | None:
    """Multiplies distinct rows only: a mean's cotangent, for example, repeats a single row."""
    if _repeats(one, 1):
        return _multiplied(node, _first(node, one, 1), other)
    if _repeats(other, 2):
        return _multiplied(node, one, _first(node, other, 2))
    fake = value(node)
    if not fake.is_floating_point() or fake.itemsize < 4:
        return None  # the sum may overflow
    if _repeats(one, 2):
        total = emit(node, aten.sum.dim_IntList, other, [1], True)
        return emit(node, aten.mul.Tensor, _first(node, one, 2), total)
    if _repeats(other, 1):
        total = emit(node, aten.sum.dim_IntList, one, [2], True)
        return emit(node, aten.mul.Tensor, total, _first(node, other, 1))
    return None


def _repeats(factor: Node, dim: int) -> bool:
    fake = value(factor)
    return statically_true(fake.stride(dim) == 0) and not statically_true(fake.shape[dim] == 1)


def _first(node: Node, factor: Node, dim: int) -> Node:
    return emit(node, aten.slice.Tensor, factor, dim, 0, 1)


def _multiplied(node: Node, one: Node, other: Node) -> Node:
    return _batched(node, one, other) or emit(node, aten.bmm.default, one, other)


def _shared(node: Node, factor: Node) -> Node | None:
    """Returns the matrix that the whole batch shares: the batch is expanded, or of size 1."""
    fake = value(factor)
    if fake.shape[0] != 1 and fake.stride(0) != 0:
        return None
    return emit(node, aten.select.int, factor, 0, 0)


def _viewed(node: Node, source: Node, sizes: list[int]) -> Node | None:
    try:
        return emit(node, aten.view.default, source, sizes)
    except (RuntimeError, ValueError):
        return None  # the batch is not outermost in memory: a copy would take longer


_REWRITES: dict[Any, Any] = {aten.mm.default: _matrices, aten.bmm.default: _batched}
