"""Transposes of products are products of transposes.

Libraries take a transposed factor as it is. A result that is read transposed, beside others that
are not, is read across its memory.
"""

from torch.fx import GraphModule

from torchlayers.compiler.passes.merge_views import is_transpose, transposed
from torchlayers.fx.nodes import aten, calls, emit, replace

PRODUCTS = (aten.mm.default, aten.bmm.default)


def turn_products(graph: GraphModule) -> None:
    """(a b)ᵀ is bᵀ aᵀ: the same sums; a library may add in another order."""
    for node in list(graph.graph.nodes):
        if not is_transpose(node) or not calls(product := node.args[0], *PRODUCTS):
            continue
        returned = any(user.op == "output" for user in node.users)
        if not returned and all(map(is_transpose, product.users)):
            one, other = (transposed(node, factor) for factor in product.args)
            replace(node, emit(node, product.target, other, one))  # type: ignore[arg-type]
