"""Common subexpression elimination."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchlayers.fx.nodes import has_effect
from torchlayers.fx.recomputation import RECOMPUTATION_ID


def share_common(graph: GraphModule) -> None:
    """Merges nodes that call the same operator with the same arguments.

    Random draws are never merged, nor are nodes that a checkpoint recomputes with the originals.
    """
    first: dict[Hashable, Node] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or has_effect(node):
            continue
        earlier = first.setdefault(key_of(node, node.args, node.kwargs), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)


def key_of(node: Node, args: Any, kwargs: Any) -> Hashable:
    """A key for the node's operator with these arguments; equal keys mean equal results."""
    return (
        node.target,
        hashable(args),
        hashable(tuple(sorted(kwargs.items()))),
        node.meta.get(RECOMPUTATION_ID),
    )


def hashable(argument: Any, describe: Callable[[Node], Any] = lambda node: node) -> Hashable:
    """A key that only identical arguments share: 1, 1.0 and True differ, and so do 0.0 and -0.0.

    Args:
        describe: what a node is in the key.
    """
    if isinstance(argument, Node):
        return describe(argument)  # type: ignore[no-any-return]
    if isinstance(argument, (list, tuple)):
        return (list, *(hashable(item, describe) for item in argument))
    if isinstance(argument, dict):
        return (dict, *((key, hashable(item, describe)) for key, item in argument.items()))
    if isinstance(argument, (bool, int, float, complex)):
        return type(argument), repr(argument)
    if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
        return type(argument), str(argument)
    constant: Hashable = argument  # dtypes, devices, names
    return constant
