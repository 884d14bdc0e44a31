"""Computes a sum of small products as one product: A B + C D is (A C) times (B over D).

A network that is unrolled in time adds to a weight's gradient in each step, a product over the few
samples of a batch. One product over the samples of many steps reads and writes the gradient once.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.merge_views import transposed
from torchlayers.compiler.passes.products.expand_small_products import FEW, SMALL
from torchlayers.compiler.passes.products.sums import (
    is_read_once,
    replace_terms,
    rewrite_sums,
    terms_of,
)
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import calls, emit, value

# Two products in one are hardly faster.
_FEWEST = 3
# With more numbers in each inner product, a library is as fast for many products as for one
# (measured on a CPU: at 16 it takes 0.7 to 0.9 of the time, at 32 as long).
_LONGEST = 16
# The inner products' numbers after which another product begins: its factors can be freed.
_LONGEST_JOINED = 512


class _Product(NamedTuple):
    """A term: the matrices, or batches of matrices, that it multiplies."""

    node: Node
    left: Node
    right: Node

    @property
    def inner(self) -> int:
        return value(self.left).shape[-1]  # type: ignore[no-any-return]


def concatenate_factors(graph: GraphModule) -> None:
    """Computes the same sums of products in a different order."""
    rewrite_sums(graph, _joined)


def _joined(root: Node) -> bool:
    terms = [*terms_of(root)]
    products = [factors for term in terms if (factors := _product_of(term, terms)) is not None]
    if len(products) < _FEWEST:
        return False
    joined = [*map(_concatenated, _runs(sorted(products)))]
    replace_terms(root, terms, [product.node for product in products], joined)
    return True


def _product_of(term: Node, terms: list[Node]) -> _Product | None:
    """The term as a product of short inner products that nothing else reads.

    Small products stay, because a compiler fuses them with what follows.
    """
    if not calls(term, aten.mm.default, aten.bmm.default) or not is_read_once(term, terms):
        return None
    product = _Product(term, *term.args)  # type: ignore[arg-type]
    sizes = (*value(product.left).shape, value(product.right).shape[-1])
    if not all(isinstance(size, int) for size in sizes) or not FEW < product.inner <= _LONGEST:
        return None
    return product if math.prod(sizes) > SMALL else None


def _runs(products: list[_Product]) -> Iterator[list[_Product]]:
    """Yields products that are computed one after the other."""
    run: list[_Product] = []
    for product in products:
        if run and sum(earlier.inner for earlier in run) + product.inner > _LONGEST_JOINED:
            yield run
            run = []
        run.append(product)
    yield run


def _concatenated(products: list[_Product]) -> Node:
    """The sum of the products, where the last of them is."""
    last = products[-1].node
    if len(products) == 1:
        return last
    rows = [transposed(last, product.left) for product in products]  # are laid out like this
    left = transposed(last, emit(last, aten.cat.default, rows, -2))
    right = emit(last, aten.cat.default, [product.right for product in products], -2)
    target: Any = aten.mm.default if value(last).dim() == 2 else aten.bmm.default
    return emit(last, target, left, right)
