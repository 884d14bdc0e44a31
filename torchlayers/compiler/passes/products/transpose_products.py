"""Rewrites transposes of products as products of transposes.

Libraries accept transposed factors as they are. A result that is read transposed, next to others
that are not, is read against its memory order.
"""

from torch.fx import GraphModule

from torchlayers.compiler.passes.merge_views import is_transpose, transposed
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import calls, emit, replace

PRODUCTS = (aten.mm.default, aten.bmm.default)


def transpose_products(graph: GraphModule) -> None:
    """Rewrites (a b)ᵀ as bᵀ aᵀ: the same sums, which a library may add in another order."""
    for node in list(graph.graph.nodes):
        if not is_transpose(node) or not calls(product := node.args[0], *PRODUCTS):
            continue
        returned = any(user.op == "output" for user in node.users)
        if not returned and all(map(is_transpose, product.users)):
            one, other = (transposed(node, factor) for factor in product.args)
            replace(node, emit(node, product.target, other, one))  # type: ignore[arg-type]
