"""Sums of tensors in a graph: their terms, through sums of sums."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
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


def sum_of(before: Node, terms: Iterable[Node]) -> Node:
    return reduce(lambda one, other: emit(before, aten.add.Tensor, one, other), terms)


def rewrite_sums(graph: GraphModule, rewrite: Callable[[Node], bool]) -> None:
    """Calls ``rewrite`` with each sum that is read and is no term of another.

    It returns whether it has replaced the sum. Goes from outputs to inputs, so that sums that it
    creates are visited in turn.
    """
    node = graph.graph.output_node()
    while node.op != "root":
        after = node.next
        is_whole = _is_sum(node) and node.users and not _is_within_sum(node)
        node = after.prev if is_whole and rewrite(node) else node.prev


def replace_terms(
    root: Node, terms: Sequence[Node], replaced: Sequence[Node], new: Sequence[Node]
) -> None:
    """Replaces a sum of these terms by that of the new ones and of those that are not replaced."""
    gone = {*replaced}
    replace(root, sum_of(root, [*(term for term in terms if term not in gone), *new]))
    _erase([root, *replaced])


def is_read_once(term: Node, terms: Sequence[Node]) -> bool:
    """Whether the sum of these terms reads it once, and nothing else does."""
    return len(term.users) == 1 and terms.count(term) == 1 and not is_pinned(term)


def _erase(nodes: list[Node]) -> None:
    """Erases nodes that are unread, and then those that only they read."""
    while nodes:
        node = nodes.pop()
        if not node.users and node.op == "call_function" and not has_effect(node):
            nodes += [operand for operand in node.all_input_nodes if operand not in nodes]
            node.graph.erase_node(node)
            nodes = [operand for operand in nodes if operand is not node]


def _is_sum(node: Node) -> bool:
    """Whether it adds two terms with its own sizes, in single precision or higher."""
    return (
        calls(node, aten.add.Tensor)
        and not node.kwargs
        and value(node).dtype in (torch.float32, torch.float64)
        and all(is_tensor(term) and _is_like(term, node) for term in node.args)
        and not is_pinned(node)
    )


def _is_like(one: Node, other: Node) -> bool:
    fake, other_fake = value(one), value(other)
    return same_kind(fake, other_fake) and same_sizes(fake.shape, other_fake.shape)


def _is_within_sum(node: Node) -> bool:
    """Whether it is a term of another sum, whose terms include its own."""
    return (
        len(node.users) == 1
        and _is_sum(reader := next(iter(node.users)))
        and (reader.args.count(node) == 1)
    )


def terms_of(root: Node) -> Iterator[Node]:
    """Yields the terms of a sum, including those of nested sums that have no other reader."""
    waiting: list[Any] = [*reversed(root.args)]
    while waiting:
        term = waiting.pop()
        if _is_sum(term) and _is_within_sum(term):
            waiting += reversed(term.args)
        else:
            yield term
