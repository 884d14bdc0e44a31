"""Joins sums of linear functions: f(x) + f(y) is f(x + y).

The backward pass of a function that is differentiated along several directions runs once for each,
with the same weights, and the gradients are added up at the end. If cotangents are added where the
directions meet, a single backward pass is left.
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
    """A term of a sum: an operator that is linear in the argument at a position."""

    node: Node
    position: int

    @property
    def operand(self) -> Any:
        return self.node.args[self.position]


def join_sums(graph: GraphModule) -> None:
    """Computes the same sums of products in a different order.

    Goes from outputs to inputs, so that sums of operands that it creates are visited in turn.
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
        """Joins the terms that are the same function. Returns whether there are any."""
        terms = [*_terms(root)]
        for same in _groups(terms):
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
        """Returns the operands' sum, right after them, where any of their readers can use it."""
        operands = tuple(sorted(operands))
        if operands not in self.sums:
            before = operands[-1].next
            while before.op == "placeholder":
                before = before.next
            self.sums[operands] = reduce(lambda *pair: _plus(before, *pair), operands)
        return self.sums[operands]


def _erase(nodes: list[Node]) -> None:
    """Erases nodes that are unread, and then those that only they read."""
    while nodes:
        node = nodes.pop()
        if not node.users and node.op == "call_function" and not has_effect(node):
            nodes += [each for each in node.all_input_nodes if each not in nodes]
            node.graph.erase_node(node)
            nodes = [each for each in nodes if each is not node]


def _plus(before: Node, one: Node, other: Node) -> Node:
    return emit(before, aten.add.Tensor, one, other)


def _is_sum(node: Node) -> bool:
    """Whether it adds two terms with its own sizes, in single precision or higher."""
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
    """Whether it is a term of another sum, whose terms include its own."""
    return (
        len(node.users) == 1
        and _is_sum(reader := next(iter(node.users)))
        and (reader.args.count(node) == 1)
    )


def _terms(root: Node) -> Iterator[Node]:
    """Yields the terms of a sum, including those of nested sums that have no other reader."""
    waiting: list[Any] = [*reversed(root.args)]
    while waiting:
        term = waiting.pop()
        if _is_sum(term) and _is_within_sum(term):
            waiting += reversed(term.args)
        else:
            yield term


def _groups(terms: list[Node]) -> Iterator[list[Term]]:
    """Yields groups of terms that differ in one argument only, in which they are linear."""
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
    """Whether other readers of the operand may be joined: a reduction alone saves nothing."""
    return len(term.operand.users) > 1
