"""Queries about a captured graph."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.nodes import EFFECT_OPS, is_collective, is_effect, is_random
from torchlayers.fx.writes import is_write

_COPY = aten.copy_.default


def inputs_of(graph: GraphModule) -> list[Node]:
    return [*graph.graph.find_nodes(op="placeholder")]


def final_copies(graph: GraphModule) -> dict[Node, int]:
    """Returns the copies that end a functional graph, with the position of the written input."""
    places = {node: i for i, node in enumerate(inputs_of(graph))}
    return {
        node: places[node.args[0]]
        for node in graph.graph.find_nodes(op="call_function", target=_COPY)
        if node.args[0] in places
    }


def outputs_of(graph: GraphModule) -> list[Any]:
    """Returns the graph's outputs: nodes, and None where there is no gradient."""
    returned: Any = graph.graph.output_node().args[0]
    return [*returned]


def operators(graph: GraphModule) -> Iterator[Node]:
    return (node for node in graph.graph.nodes if node.op == "call_function")


def generators_of(graph: GraphModule) -> list[torch.Generator] | None:
    """Returns the generators besides torch's default that are drawn from; None without draws."""
    if not any(is_random(node) for node in operators(graph)):
        return None
    objects = list[Any]()
    for module in graph.modules():  # branches and bodies, too
        objects += vars(module).values()
        if isinstance(module, GraphModule):
            for node in operators(module):
                objects += [*node.args, *node.kwargs.values()]
    return [obj for obj in objects if isinstance(obj, torch.Generator)]


def communicates(graph: GraphModule) -> bool:
    """Whether an operator waits for other ranks, so that one rank alone can't rerun the graph."""
    return any(is_collective(node) for node in operators(graph))


def has_effects(graph: GraphModule) -> bool:
    """Whether an operator prints, stops or calls an io_callback, as often as the graph runs."""
    return any(is_effect(node) for node in operators(graph))


def first_with_effect_inside(graph: GraphModule) -> Node | None:
    """The first branch or loop with such an operator in its graph."""
    with_effect = (
        node for node in operators(graph) if is_effect(node) and node.target not in EFFECT_OPS
    )
    return next(with_effect, None)


def half_precision(graph: GraphModule) -> torch.dtype | None:
    """Returns the half-precision dtype of some of its values (mixed precision), or None."""
    dtypes = {tensor.dtype for node in operators(graph) for tensor in _results(node)}
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in dtypes), None)


def _results(node: Node) -> Iterator[torch.Tensor]:
    fake = node.meta.get("val")
    several = fake if isinstance(fake, (list, tuple)) else [fake]
    return (result for result in several if isinstance(result, torch.Tensor))


def is_functional(graph: GraphModule) -> bool:
    """Whether no operator writes to an argument, except the copies that end the graph."""
    copies = final_copies(graph)
    return not any(is_write(node) for node in operators(graph) if node not in copies)
