"""Operators of a captured graph that ran for information only, such as a sparsity pattern."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import Graph

_MARK = "torchlayers_trial"


@contextmanager
def mark_trial_nodes() -> Iterator[None]:
    """Marks the nodes that a capture in progress adds to its graph inside the block."""
    from torch.fx.experimental import proxy_tensor

    mode: Any = proxy_tensor.get_proxy_mode()
    if mode is None:
        yield
        return
    end = mode.tracer.graph._root
    last = end.prev
    try:
        yield
    finally:
        node = end.prev
        while node is not last:
            node.meta[_MARK] = True
            node = node.prev


def drop_trial_nodes(graph: Graph) -> None:
    """Drops marked nodes, also those with effects; one that the function reads later is kept."""
    for node in reversed(graph.nodes):
        if _MARK in node.meta and not node.users and node.op == "call_function":
            graph.erase_node(node)
