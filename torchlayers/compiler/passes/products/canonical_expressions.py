"""Canonical forms of elementwise expressions, in which equal expressions compare equal.

An expression is a number times factors, in any order. A factor is an opaque node (a product of
matrices, an input), an elementwise function of expressions, or a sum of expressions, whose common
factors are taken out. Products of sums are not multiplied out and nothing is cancelled: two equal
expressions have the same terms, and differ only by rounding.
"""

import math
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from torchlayers.compiler.passes.known_constants import is_identity, number_of
from torchlayers.compiler.passes.products.element_maps import (
    AffineIndex,
    ElementMap,
    map_broadcast_operand,
    map_view_source,
)
from torchlayers.compiler.passes.products.linearity import has_slope
from torchlayers.core import operator_schema
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.cse import hashable
from torchlayers.fx.nodes import (
    calls,
    is_random,
    is_tensor,
    statically_true,
    value,
)

# A node whose expression exceeds these limits is treated as opaque.
MOST_TERMS, MOST_FACTORS, DEEPEST = 16, 32, 50


class Expression(NamedTuple):
    """A number times factors: sorted indices into ``Expressions.factors``."""

    number: Fraction
    factors: tuple[int, ...]


class Factor(NamedTuple):
    """A factor's key, the dimensions of the space that it varies along, and its node if opaque."""

    key: Hashable
    moves: frozenset[int]
    node: Node | None = None
    places: ElementMap = ()
    terms: tuple[Expression, ...] = ()


class Expressions:
    """Builds the expressions of a graph's nodes at the positions of a space (element_maps.py)."""

    def __init__(self) -> None:
        self.factors: list[Factor] = []
        self._indices: dict[Hashable, int] = {}
        self._known: dict[Hashable, Expression] = {}
        self._depth = 0

    def expand(self, node: Node, places: ElementMap, space: Sequence[Any]) -> Expression:
        key = node, hashable(places), hashable(space)
        if key not in self._known:
            self._depth += 1
            expression = self._computed(node, places, space) if self._depth < DEEPEST else None
            self._depth -= 1
            if expression is None or len(expression.factors) > MOST_FACTORS:
                expression = self._node(node, places)
            self._known[key] = expression
        return self._known[key]

    def _computed(self, node: Node, places: ElementMap, space: Sequence[Any]) -> Expression | None:
        """Returns None where the node has to be treated as opaque."""
        if node.op != "call_function" or not is_tensor(node) or is_random(node):
            return None
        if (source := map_view_source(node, places, space)) is not None:
            return self.expand(node.args[0], source, space)  # type: ignore[arg-type]
        if not isinstance(node.target, OpOverload) or operator_schema.writes(node.target):
            return None
        if (number := number_of(node, {})) is not None:
            return _number(number)
        if calls(node, aten.diagonal_backward.default):
            return self._on_diagonal(node, places, space)
        if is_identity(node):
            return self._identity(*places)
        if torch.Tag.pointwise not in node.target.tags and not has_slope(node.target):
            return None
        fake = value(node)
        operands = [
            self.expand(
                operand, map_broadcast_operand(places, fake.shape, value(operand).shape), space
            )
            if is_tensor(operand)
            else operand
            for operand in node.args
        ]
        moves = any(place.steps[-1:] not in ((), (0,)) for place in places)
        if fake.dtype in (torch.float32, torch.float64) and all(
            is_tensor(operand) and value(operand).dtype == fake.dtype
            for operand in node.all_input_nodes
        ):
            result = self._linear(node, operands) or (moves and self._algebra(node, operands))
            if result:
                return result
        if not moves:
            return None  # opaque, so that a product can be multiplied with this node
        return self._function(str(node.target), operands, _sorted_kwargs(node), fake.dtype)

    def _linear(self, node: Node, operands: list[Any]) -> Expression | None:
        one, *rest = map(_as_expression, operands)
        if calls(node, aten.neg.default):
            return _product(_number(-1), one)
        if node.kwargs or len(rest) != 1:
            return None
        if calls(node, aten.mul.Tensor, aten.mul.Scalar):
            return _product(one, rest[0])
        if calls(node, aten.div.Tensor, aten.div.Scalar) and rest[0] and not rest[0].factors:
            return _product(one, Expression(1 / rest[0].number, ()))
        return None

    def _algebra(self, node: Node, operands: list[Any]) -> Expression | None:
        one, *rest = map(_as_expression, operands)
        if has_slope(node.target):
            return _product(
                one, self._function(str(node.target), operands[1:], _sorted_kwargs(node))
            )
        if node.kwargs:
            return None
        if calls(node, aten.pow.Tensor_Scalar) and operands[1] in (2, 3):
            return reduce(_product, [one] * int(operands[1]))
        if calls(node, aten.add.Tensor) and len(rest) == 1:
            return self._sum(one, rest[0])
        if calls(node, aten.sub.Tensor) and len(rest) == 1:
            return self._sum(one, _product(_number(-1), rest[0]))
        if calls(node, aten.addcmul.default) and len(rest) == 2:
            return self._sum(one, _product(*rest))
        return None

    def _on_diagonal(
        self, node: Node, places: ElementMap, space: Sequence[Any]
    ) -> Expression | None:
        """diagonal_backward: the source along a diagonal is the source times an identity's rows."""
        args: Any = node.args
        source, _, offset, *axes = args
        one, other = (axis % value(node).dim() for axis in axes)
        sizes = value(node).shape
        if offset != 0 or not is_tensor(source) or not statically_true(sizes[one] == sizes[other]):
            return None
        along = min(places[one], places[other], key=lambda place: place.steps[-1] != 0)
        rest = [place for dim, place in enumerate(places) if dim not in (one, other)]
        identity = self._identity(places[one], places[other])
        return _product(self.expand(source, (*rest, along), space), identity)

    def _identity(self, one: AffineIndex, other: AffineIndex) -> Expression:
        key, moves = of_identity(one, other), one.moves | other.moves
        return Expression(Fraction(1), (self._index(Factor(key, moves)),))

    def _sum(self, one: Expression | None, other: Expression | None) -> Expression | None:
        if one is None or other is None:
            return None
        common = Counter(one.factors) & Counter(other.factors)
        terms: list[Expression] = []
        for expression in one, other:
            rest = _sorted(Counter(expression.factors) - common)
            sums = [factor for factor in rest if self.factors[factor].terms]
            if len(sums) != 1:
                terms.append(Expression(expression.number, rest))
                continue
            beside = Expression(expression.number, _sorted(Counter(rest) - Counter(sums)))
            terms += [_times(beside, term) for term in self.factors[sums[0]].terms]
        common_of_terms = reduce(operator.and_, (Counter(term.factors) for term in terms))
        terms = [
            term._replace(factors=_sorted(Counter(term.factors) - common_of_terms))
            for term in terms
        ]
        common += common_of_terms
        if len(terms) > MOST_TERMS:
            return None
        terms.sort(key=lambda term: (term.factors, term.number))
        first = terms[0].number
        scaled = tuple(Expression(term.number / first, term.factors) for term in terms)
        key = "sum", scaled
        total = self._index(Factor(key, self._moves(*terms), terms=scaled))
        return Expression(first, _sorted(common + Counter([total])))

    def _function(self, name: str, operands: Sequence[Any], *rest: Any) -> Expression:
        """Returns a function of operands, which may be expressions or other arguments."""
        moves = set[int]()
        for operand in operands:
            if isinstance(operand, Expression):
                moves |= self._moves(operand)
        key = name, hashable(operands), hashable(rest)
        return Expression(Fraction(1), (self._index(Factor(key, frozenset(moves))),))

    def _node(self, node: Node, places: ElementMap) -> Expression:
        moves = frozenset[int]().union(*(place.moves for place in places))
        factor = Factor((node, hashable(places)), moves, node, places)
        return Expression(Fraction(1), (self._index(factor),))

    def _index(self, factor: Factor) -> int:
        index = self._indices.setdefault(factor.key, len(self.factors))
        if index == len(self.factors):
            self.factors.append(factor)
        return index

    def _moves(self, *expressions: Expression) -> frozenset[int]:
        factors = [factor for expression in expressions for factor in expression.factors]
        return frozenset().union(*(self.factors[factor].moves for factor in factors))


def of_identity(one: AffineIndex, other: AffineIndex) -> Hashable:
    """The key of an element of an identity matrix."""
    return "identity", *sorted([hashable(one), hashable(other)], key=str)


def _number(number: Any) -> Expression | None:
    """Returns the number as an exact factor; None for 0, inf, nan and other types."""
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return (
        Expression(Fraction(number), ()) if is_number and number and math.isfinite(number) else None
    )


def _product(one: Expression | None, other: Expression | None) -> Expression | None:
    return None if one is None or other is None else _times(one, other)


def _times(one: Expression, other: Expression) -> Expression:
    return Expression(one.number * other.number, _sorted(one.factors + other.factors))


def _sorted(factors: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(Counter(factors).elements()))


def _as_expression(operand: Any) -> Expression | None:
    return operand if isinstance(operand, Expression) else _number(operand)


def _sorted_kwargs(node: Node) -> list[Any]:
    return sorted(node.kwargs.items())
