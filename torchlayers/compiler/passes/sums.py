"""Sums of tensors in a graph: their terms, through sums of sums."""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import torch
from torch.fx import Node

from torchlayers.fx.nodes import (
    aten,
    calls,
    emit,
    has_effect,
    is_pinned,
    is_tensor,
    same_kind,
    same_sizes,
    value,
)


def erase(nodes: list[Node]) -> None:
    """Erases nodes that are unread, and then those that only they read."""
    while nodes:
        node = nodes.pop()
        if not node.users and node.op == "call_function" and not has_effect(node):
            nodes += [each for each in node.all_input_nodes if each not in nodes]
            node.graph.erase_node(node)
            nodes = [each for each in nodes if each is not node]


def sum_of(before: Node, terms: Iterable[Node]) -> Node:
    return reduce(lambda one, other: emit(before, aten.add.Tensor, one, other), terms)


def is_sum(node: Node) -> bool:
    """Whether it adds two terms with its own sizes, in single precision or higher."""
    return (
        calls(node, aten.add.Tensor)
        and not node.kwargs
        and value(node).dtype in (torch.float32, torch.float64)
        and all(is_tensor(each) and _is_like(each, node) for each in node.args)
        and not is_pinned(node)
    )


def is_whole_sum(node: Node) -> bool:
    """Whether it is a sum that is read, and no term of another."""
    return is_sum(node) and bool(node.users) and not is_within_sum(node)


def _is_like(one: Node, other: Node) -> bool:
    told, true = value(one), value(other)
    return same_kind(told, true) and same_sizes(told.shape, true.shape)


def is_within_sum(node: Node) -> bool:
    """Whether it is a term of another sum, whose terms include its own."""
    return (
        len(node.users) == 1
        and is_sum(reader := next(iter(node.users)))
        and (reader.args.count(node) == 1)
    )


def terms_of(root: Node) -> Iterator[Node]:
    """Yields the terms of a sum, including those of nested sums that have no other reader."""
    waiting: list[Any] = [*reversed(root.args)]
    while waiting:
        term = waiting.pop()
        if is_sum(term) and is_within_sum(term):
            waiting += reversed(term.args)
        else:
            yield term
