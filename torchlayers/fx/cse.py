"""What is computed twice is computed once."""

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchlayers.fx.nodes import has_effect
from torchlayers.fx.recomputation import NUMBER


def share_common(graph: GraphModule) -> None:
    """Exact: the same operator on the same arguments.

    Draws of random numbers are not the same, nor is what a checkpoint computes again.
    """
    first: dict[Hashable, Node] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or has_effect(node):
            continue
        earlier = first.setdefault(key_of(node, node.args, node.kwargs), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)


def key_of(node: Node, args: Any, kwargs: Any) -> Hashable:
    """Equal for operators that compute the same: the node's, on these arguments."""
    return (
        node.target,
        hashable(args),
        hashable(tuple(sorted(kwargs.items()))),
        node.meta.get(NUMBER),
    )


def hashable(argument: Any) -> Hashable:
    """Equal for the same arguments only: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(argument, (list, tuple)):
        return (list, *map(hashable, argument))
    if isinstance(argument, (bool, int, float, complex)):
        return type(argument), repr(argument)
    if isinstance(argument, torch.SymInt):
        return torch.SymInt, str(argument)
    told: Hashable = argument  # nodes, dtypes, devices, names
    return told
