"""Writes in a captured graph: which operators write, and to what."""

from torch.fx import GraphModule, Node

from torchlayers.core import operator_schema
from torchlayers.fx.nodes import memory_of


def is_write(node: Node) -> bool:
    """Whether the operator writes to one of its arguments."""
    return node.op == "call_function" and operator_schema.writes(node.target)


def written_by(node: Node) -> list[Node]:
    """The arguments that a write writes to."""
    targets = []
    for position, name in operator_schema.places_written(node.target):
        argument_of_node = node.args[position] if position < len(node.args) else None
        argument_of_node = node.kwargs.get(name) if argument_of_node is None else argument_of_node
        several = (
            argument_of_node if isinstance(argument_of_node, (list, tuple)) else [argument_of_node]
        )
        targets += [target for target in several if isinstance(target, Node)]
    return targets


def written_inputs(graph: GraphModule) -> dict[Node, Node]:
    """The inputs that are written to, each with the last node that writes to it."""
    written = {}
    for node in graph.graph.nodes:
        if is_write(node):
            for target in written_by(node):
                if (memory := memory_of(target)).op == "placeholder":
                    written[memory] = node
    return written
