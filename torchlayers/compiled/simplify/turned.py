"""Transposes of products are products of transposes.

Libraries take a transposed factor as it is. A result that is read transposed, beside others that
are not, is read across its memory.
"""

from typing import Any

from torch.fx import GraphModule, Node

from torchlayers.compiled.simplify.nodes import aten, calls, emit, is_tensor, replace, value
from torchlayers.compiled.simplify.views import PERMUTES, order_of

PRODUCTS = (aten.mm.default, aten.bmm.default)


def turn_products(graph: GraphModule) -> None:
    """(a b)ᵀ is bᵀ aᵀ: the same sums; a library may add in another order."""
    for node in list(graph.graph.nodes):
        if not _is_transpose(node) or not calls(product := node.args[0], *PRODUCTS):
            continue
        returned = any(user.op == "output" for user in node.users)
        if not returned and all(map(_is_transpose, product.users)):
            one, other = (_transposed(node, factor) for factor in product.args)
            replace(node, emit(node, product.target, other, one))  # type: ignore[arg-type]


def _is_transpose(node: Any) -> bool:
    """Of a matrix, or of each of a batch."""
    if node.target not in PERMUTES or not is_tensor(node):
        return False
    dims = value(node).dim()
    return dims in (2, 3) and order_of(node) == [*range(dims - 2), dims - 1, dims - 2]


def _transposed(before: Node, factor: Any) -> Node:
    return emit(before, aten.transpose.int, factor, -2, -1)
