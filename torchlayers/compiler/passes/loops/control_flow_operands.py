"""Copies operands of control flow to the strides that its branches and bodies were captured with.

Branches and bodies have views that depend on the strides of their inputs, and torch requires that
a loop's carry has the same strides before and after an iteration. The other passes preserve only
values.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.core.operators import higher_order
from torchlayers.fx.nodes import copy_with_strides, has_strides, is_tensor, statically_true, value

# For each operator, the position of an argument that is a graph, and the positions of the tuples
# that are its first inputs. A scan makes the other inputs of its body contiguous.
_TAKING: dict[Callable[..., Any], tuple[int, Sequence[int]]] = {
    higher_order.cond: (1, (3,)),
    higher_order.while_loop: (1, (2, 3)),
    higher_order.scan: (0, (1,)),
}


def runs_graphs(node: Node) -> bool:
    return node.op == "call_function" and node.target in _TAKING


def lay_out_operands(graph: GraphModule) -> None:
    """Copies operands whose strides differ from those of the captured inputs."""
    for node in filter(runs_graphs, [*graph.graph.nodes]):
        body_place, tuples = _TAKING[node.target]
        body = getattr(graph, str(node.args[body_place].target))
        inputs = iter(body.graph.find_nodes(op="placeholder"))
        args: list[Any] = [*node.args]
        for place in tuples:
            operands: Sequence[Any] = args[place]
            args[place] = tuple(_laid_out(node, x, next(inputs)) for x in operands)
        node.args = tuple(args)


def _laid_out(before: Node, operand: Any, taken_by: Node) -> Any:
    expected = value(taken_by)
    if not is_tensor(operand) or not isinstance(expected, Tensor):
        return operand
    if not (has_strides(value(operand)) and has_strides(expected)):
        return operand
    pairs = zip(value(operand).stride(), expected.stride(), strict=True)
    if all(statically_true(one == other) for one, other in pairs):  # including dimensions of size 1
        return operand
    return copy_with_strides(before, operand, expected)
