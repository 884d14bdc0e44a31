"""Sums of what is linear: f(x) + f(y) is f(x + y).

A function that is differentiated along several directions is passed back through once for each, by
the same weights, and the gradients are added up at the end. Added up where they meet, one pass does
for all.
"""

from collections.abc import Hashable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from torchlayers.compiler.passes.linearity import SUMS, linear_in
from torchlayers.fx.cse import hashable, key_of
from torchlayers.fx.nodes import (
    aten,
    calls,
    emit,
    has_effect,
    is_pinned,
    is_tensor,
    replace,
    same_kind,
    same_sizes,
    value,
)


class Term(NamedTuple):
    """One of a sum: an operator, linear in the argument at a position."""

    node: Node
    position: int

    @property
    def operand(self) -> Any:
        return self.node.args[self.position]


def join_sums(graph: GraphModule) -> None:
    """The same sums of products, multiplied and added in another order.

    From the results to the inputs: what is passed back is joined where it was last.
    """
    joining, node = _Joining(), graph.graph.output_node()
    while node.op != "root":
        after = node.next
        is_whole = _is_sum(node) and node.users and not _is_within_sum(node)
        node = after.prev if is_whole and joining.join(node) else node.prev


class _Joining:
    def __init__(self) -> None:
        self.sums: dict[tuple[Node, ...], Node] = {}

    def join(self, root: Node) -> bool:
        """Those terms that are the same function, if there are any: the sum is then another."""
        terms = [*_terms(root)]
        for same in _groups(root, terms):
            first, position = same[0]
            try:
                joined = self.sum(tuple(term.operand for term in same))
                args = (*first.args[:position], joined, *first.args[position + 1 :])
                total = emit(root, first.target, *args, **first.kwargs)  # type: ignore[arg-type]
            except (RuntimeError, ValueError):
                continue  # the sum's strides don't allow a view
            rest = [term for term in terms if all(term is not each.node for each in same)]
            replace(root, reduce(lambda one, other: _plus(root, one, other), [*rest, total]))
            _erase([root, *(term.node for term in same)])
            return True
        return False

    def sum(self, operands: tuple[Node, ...]) -> Node:
        """Right after them, so that whoever reads them can read it."""
        operands = tuple(sorted(operands))
        if operands not in self.sums:
            before = operands[-1].next
            while before.op == "placeholder":
                before = before.next
            self.sums[operands] = reduce(lambda *pair: _plus(before, *pair), operands)
        return self.sums[operands]


def _erase(nodes: list[Node]) -> None:
    """Those that nobody reads any more, and what is read by them alone."""
    while nodes:
        node = nodes.pop()
        if not node.users and node.op == "call_function" and not has_effect(node):
            nodes += [each for each in node.all_input_nodes if each not in nodes]
            node.graph.erase_node(node)
            nodes = [each for each in nodes if each is not node]


def _plus(before: Node, one: Node, other: Node) -> Node:
    return emit(before, aten.add.Tensor, one, other)


def _is_sum(node: Node) -> bool:
    """Of two terms as large as it is, in single precision or more."""
    return (
        calls(node, aten.add.Tensor)
        and not node.kwargs
        and value(node).dtype in (torch.float32, torch.float64)
        and all(is_tensor(each) and _is_like(each, node) for each in node.args)
        and not is_pinned(node)
    )


def _is_like(one: Node, other: Node) -> bool:
    told, true = value(one), value(other)
    return same_kind(told, true) and same_sizes(told.shape, true.shape)


def _is_within_sum(node: Node) -> bool:
    """It is a term of another one, which has its terms too."""
    return (
        len(node.users) == 1
        and _is_sum(reader := next(iter(node.users)))
        and (reader.args.count(node) == 1)
    )


def _terms(root: Node) -> Iterator[Node]:
    """What is added up, by sums that nobody else reads."""
    waiting: list[Any] = [*reversed(root.args)]
    while waiting:
        term = waiting.pop()
        if _is_sum(term) and _is_within_sum(term):
            waiting += reversed(term.args)
        else:
            yield term


def _groups(root: Node, terms: list[Node]) -> Iterator[list[Term]]:
    """Terms that differ in one argument alone, in which they are linear."""
    groups: dict[Hashable, list[Term]] = {}
    for node in terms:
        if len(node.users) > 1 or terms.count(node) > 1 or is_pinned(node):
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
        are_worth = not calls(same[0].node, *SUMS) or all(map(_is_read_besides, same))
        if len(same) > 1 and are_worth:
            yield same


def _is_read_besides(term: Term) -> bool:
    """What reads it too may be joined as well. Of a sum alone there is nothing to be saved."""
    return len(term.operand.users) > 1
