"""Computes products from earlier ones with the same rows, each row times a number.

When a loss of a Laplacian is differentiated, the cotangents of the tangents are the tangents again,
each times the loss residual at its point: (r ∘ A) B is r ∘ (A B), and A B is computed already.
Gradients of weights are sums over points, in which either factor's rows may be the scaled ones.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.merge_views import RESHAPES, is_transpose, with_rows
from torchlayers.compiler.passes.products.canonical_expressions import Expressions, of_identity
from torchlayers.compiler.passes.products.element_maps import (
    SAME,
    AffineIndex,
    ElementMap,
    identity_map,
    map_reshape,
)
from torchlayers.core.operators import aten
from torchlayers.fx.cse import hashable
from torchlayers.fx.nodes import (
    calls,
    emit,
    is_tensor,
    replace,
    same_sizes,
    statically_true,
    value,
)
from torchlayers.fx.recomputation import RECOMPUTATION_ID

LARGEST = 2**64  # largest scale, within the range of single precision


class ScaledProduct(NamedTuple):
    """A product, apart from the scale of its rows: a number, and factors.

    ``sizes`` are those of its result before batches of rows were flattened to rows of a matrix.
    """

    key: tuple[Any, ...]
    number: Fraction
    factors: Counter[int]
    sizes: list[Any]
    is_kept: bool = True


def share_scaled(graph: GraphModule) -> None:
    """Computes the same sums of products, multiplied with a number after they are added up."""
    sharing = _Sharing()
    for node in list(graph.graph.nodes):
        if not calls(node, aten.mm.default, aten.bmm.default, aten.mv.default):
            continue
        if value(node).dtype in (torch.float32, torch.float64):
            sharing.share(node)


class _Sharing:
    """The products found so far."""

    def __init__(self) -> None:
        self.expressions = Expressions()
        self.products: dict[Hashable, tuple[Node, ScaledProduct]] = {}

    def share(self, node: Node) -> None:
        """Replaces the node with a multiple of an earlier product, or stores it for later nodes."""
        seen = [*(self.vector(node) if calls(node, aten.mv.default) else self.matrices(node))]
        kind = node.meta.get(RECOMPUTATION_ID), value(node).dtype, value(node).device
        for expression in seen:
            known = self.of_identity(node, expression) or self.products.get((expression.key, kind))
            if (
                known is not None
                and (other := self.read_product(node, expression, *known)) is not None
            ):
                replace(node, other)
                return
        for expression in seen:
            if expression.is_kept:
                self.products.setdefault((expression.key, kind), (node, expression))

    def vector(self, node: Node) -> Iterator[ScaledProduct]:
        """Describes a matrix times a vector as a row times the transposed matrix."""
        args: Any = node.args
        matrix, row = args
        space = [*value(row).shape]
        number, factors, rest = self.split(row, identity_map(space), space)
        sizes = [*value(matrix).shape][::-1]
        turned = self.expressions.expand(matrix, identity_map(sizes)[::-1], sizes)
        yield ScaledProduct(("row", rest, turned, hashable(sizes)), number, factors, sizes[1:])

    def matrices(self, node: Node) -> Iterator[ScaledProduct]:
        args: Any = node.args
        one, other = args
        left = _refined(one)
        space = [*value(left).shape]
        number, factors, rest = self.split(left, identity_map(space), space)
        right = self.right(other)
        sizes = [*space[:-1], value(other).shape[-1]]
        seen = hashable([*space, sizes[-1]])
        yield ScaledProduct(("rows", rest, right, seen), number, factors, sizes)
        if all(self.expressions.factors[factor].moves <= {len(space) - 1} for factor in rest):
            first = *(AffineIndex(0, (0,)) for _ in space[:-1]), *identity_map(space[-1:])
            number_of_first, _, row = self.split(left, first, space[-1:])
            if number_of_first == number and len(row) == len(rest):
                key = "row", row, right, hashable([space[-1], sizes[-1]])
                yield ScaledProduct(key, number, factors, sizes, is_kept=False)
        if calls(node, aten.mm.default) and is_transpose(one):
            yield from self.over_rows(_refined(one.args[0]), _refined(other), value(node).shape)

    def over_rows(self, one: Node, other: Node, sizes: Sequence[Any]) -> Iterator[ScaledProduct]:
        """Describes a sum over rows, in which either factor may have the rows' scales."""
        rows = max(value(one).shape[:-1], value(other).shape[:-1], key=len)
        numbers, factors, rests = Fraction(1), Counter[int](), []
        for factor in one, other:
            space = [*rows, value(factor).shape[-1]]
            places = map_reshape(identity_map(space), space, value(factor).shape, space)
            if places is None:
                return
            number, of_rows, rest = self.split(factor, places, space)
            numbers, factors = numbers * number, factors + of_rows
            rests.append((rest, hashable(space)))
        scale = tuple(sorted(factors.elements()))
        yield ScaledProduct(("over", *rests, scale), numbers, Counter(), [*sizes])

    def of_identity(self, node: Node, product: ScaledProduct) -> tuple[Node, ScaledProduct] | None:
        """Returns the right factor if the left one is an identity for each batch of rows."""
        kind, rest, *_ = product.key
        if kind != "rows" or len(rest) != 1:
            return None
        last = len(product.sizes) - 1
        units = [
            AffineIndex(0, tuple(int(at == dim) for at in range(last + 1)))
            for dim in (last - 1, last)
        ]
        if self.expressions.factors[rest[0]].key != of_identity(*units):
            return None
        identity: Any = node.args[1]
        if value(identity).dim() not in (2, len(product.sizes)):
            return None  # its batch dimensions are flattened, unlike the left factor's
        if not same_sizes(value(identity).shape[-2:], product.sizes[-2:]):
            return None  # the left factor is only some rows or columns of an identity matrix
        right = emit(node, aten.expand.default, identity, product.sizes)
        return right, product._replace(number=Fraction(1), factors=Counter())

    def split(
        self, node: Node, places: ElementMap, space: Sequence[Any]
    ) -> tuple[Fraction, Counter[int], tuple[int, ...]]:
        """Returns the number, the factors that are constant along a row, and those that vary."""
        number, factors = self.expressions.expand(node, places, space)
        last = len(space) - 1
        changing = [factor for factor in factors if last in self.expressions.factors[factor].moves]
        return number, Counter(factors) - Counter(changing), tuple(changing)

    def right(self, matrix: Node) -> Hashable:
        """Returns the right factor, without the batch if all of it shares one matrix."""
        sizes = [*value(matrix).shape]
        expression = self.expressions.expand(matrix, identity_map(sizes), sizes)
        if len(sizes) == 2 or any(
            0 in self.expressions.factors[factor].moves for factor in expression.factors
        ):
            return expression
        places = AffineIndex(0, (0, 0)), *identity_map(sizes[1:])
        return self.expressions.expand(matrix, places, sizes[1:])

    def read_product(
        self, node: Node, wanted: ScaledProduct, product: Node, like: ScaledProduct
    ) -> Node | None:
        """Returns the wanted product as a multiple of the given one, or None if it is not."""
        factors = wanted.factors - like.factors
        if like.factors - wanted.factors:
            return None
        scales: list[Any] = [
            self.scale(node, factor, wanted.sizes) for factor in factors.elements()
        ]
        if None in scales:
            return None
        if (number := wanted.number / like.number) != 1:
            if not 1 / LARGEST < abs(number) < LARGEST:
                return None
            first = (
                emit(node, aten.mul.Tensor, scales[0], float(number)) if scales else float(number)
            )
            scales[:1] = [first]
        if not same_sizes(value(product).shape, like.sizes):  # its batch dimensions are flattened
            product = with_rows(node, product, like.sizes[:-1])
        return _multiplied(node, product, scales, wanted.sizes)

    def scale(self, before: Node, factor: int, sizes: Sequence[Any]) -> Node | None:
        """Returns a factor of rows as a tensor that broadcasts to their elements, or None."""
        _, _, source, places, _ = self.expressions.factors[factor]
        if source is None or any(len(place.moves) > 1 for place in places):
            return None
        node, along = source, list[int]()
        for dim in reversed(range(len(places))):
            start, steps = places[dim]
            if not places[dim].moves:
                node = emit(before, aten.select.int, node, dim, start)
                continue
            (of_space,) = places[dim].moves
            is_whole = statically_true(value(source).shape[dim] == sizes[of_space])
            if start != 0 or steps[of_space] != 1 or of_space in along or not is_whole:
                return None
            along.insert(0, of_space)
        order = sorted(range(len(along)), key=along.__getitem__)
        if order != sorted(order):
            node = emit(before, aten.permute.default, node, order)
        for dim in range(len(sizes)):
            if dim not in along:
                node = emit(before, aten.unsqueeze.default, node, dim)
        return node


def _multiplied(before: Node, product: Node, scales: list[Any], sizes: list[Any]) -> Node | None:
    """Returns the scaled product with the sizes of the node ``before``, or None."""
    node, fake = product, value(before)
    try:
        for scale in scales:
            node = emit(before, aten.mul.Tensor, node, scale)
        if not same_sizes(value(node).shape, sizes):
            node = emit(before, aten.expand.default, node, sizes)
        if not same_sizes(sizes, fake.shape):
            node = emit(before, aten.view.default, node, [*fake.shape])
    except (RuntimeError, ValueError):
        return None  # strides don't allow a view
    return node


def _refined(matrix: Any) -> Any:
    """Returns the batches of rows that the matrix is a view of, or else the matrix."""
    node = matrix
    while node.target in RESHAPES | SAME and is_tensor(node.args[0]):
        node = node.args[0]
        if not same_sizes(value(node).shape[-1:], value(matrix).shape[-1:]):
            return matrix
        if value(node).dim() > 2:
            return node
    return matrix
