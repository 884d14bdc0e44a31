"""Joins sums of linear functions: f(x) + f(y) is f(x + y).

The backward pass of a function that is differentiated along several directions runs once for each,
with the same weights, and the gradients are added up at the end. If cotangents are added where the
directions meet, a single backward pass is left.
"""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.products.linearity import PRODUCTS, linear_in
from torchlayers.compiler.passes.products.sums import (
    is_read_once,
    replace_terms,
    rewrite_sums,
    sum_of,
    terms_of,
)
from torchlayers.core.operators import aten
from torchlayers.fx.cse import hashable, key_of
from torchlayers.fx.nodes import calls, emit, is_tensor, statically_true, value


class Term(NamedTuple):
    """A term of a sum: an operator that is linear in the argument at a position."""

    node: Node
    position: int

    @property
    def operand(self) -> Any:
        return self.node.args[self.position]


def join_sums(graph: GraphModule) -> None:
    """Computes the same sums of products in a different order."""
    rewrite_sums(graph, _Joining().join)


class _Joining:
    def __init__(self) -> None:
        self.sums: dict[tuple[Node, ...], Node] = {}

    def join(self, root: Node) -> bool:
        """Joins the terms that are the same function. Returns whether there are any."""
        terms = [*terms_of(root)]
        for same in _groups(terms):
            first, position = same[0]
            try:
                joined = self.sum(tuple(term.operand for term in same))
                args = (*first.args[:position], joined, *first.args[position + 1 :])
                total = emit(root, first.target, *args, **first.kwargs)  # type: ignore[arg-type]
            except (RuntimeError, ValueError):
                continue  # the sum's strides don't allow a view
            replace_terms(root, terms, [term.node for term in same], [total])
            return True
        return False

    def sum(self, operands: tuple[Node, ...]) -> Node:
        """Returns the operands' sum, right after them, where any of their readers can use it."""
        operands = tuple(sorted(operands))
        if operands not in self.sums:
            before = operands[-1].next
            while before.op == "placeholder":
                before = before.next
            self.sums[operands] = sum_of(before, operands)
        return self.sums[operands]


def _groups(terms: list[Node]) -> Iterator[list[Term]]:
    """Yields groups of terms that differ in one argument only, in which they are linear."""
    groups: dict[Hashable, list[Term]] = {}
    for node in terms:
        if not is_read_once(node, terms):
            continue
        for position in linear_in(node):
            operand = node.args[position]
            if not is_tensor(operand) or node.args.count(operand) > 1:
                continue
            if value(operand).dtype != value(node).dtype:
                continue
            others = (*node.args[:position], None, *node.args[position + 1 :])
            if calls(node, aten.mul.Tensor) and position == 1:
                others = others[::-1]
            key = key_of(node, others, node.kwargs), hashable([*value(operand).shape])
            groups.setdefault(key, []).append(Term(node, position))
    for same in groups.values():
        are_worth = not _is_shorter(same[0]) or all(map(_is_read_besides, same))
        if len(same) > 1 and are_worth:
            yield same


def _is_shorter(term: Term) -> bool:
    """Whether the term has fewer elements than its operand, other than a product."""
    counts = value(term.node).numel(), value(term.operand).numel()
    return term.node.target not in PRODUCTS and not statically_true(counts[0] >= counts[1])


def _is_read_besides(term: Term) -> bool:
    """Whether other readers of the operand may be joined: a part or a reduction saves nothing."""
    return len(term.operand.users) > 1
