"""What control flow is given lies in memory as its branches and bodies were recorded with it.

They have views that the strides of their inputs allow, and torch wants what a loop carries to have
the same strides before and after a trip. The other passes look at values only.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch.fx import GraphModule, Node

from torchlayers.fx.nodes import certainly, has_strides, is_tensor, laid_out, value

# Of each operator, which argument is a graph, and which are tuples of what that takes first. A scan
# makes everything else that its body is given contiguous.
_TAKING: dict[Callable[..., Any], tuple[int, Sequence[int]]] = {
    cond_op: (1, (3,)),
    while_loop_op: (1, (2, 3)),
    scan_op: (0, (1,)),
}


def runs_graphs(node: Node) -> bool:
    return node.op == "call_function" and node.target in _TAKING


def lay_out_operands(graph: GraphModule) -> None:
    """Copies those that have other strides."""
    for node in filter(runs_graphs, [*graph.graph.nodes]):
        held, tuples = _TAKING[node.target]
        body = getattr(graph, str(node.args[held].target))
        inputs = iter(body.graph.find_nodes(op="placeholder"))
        args: list[Any] = [*node.args]
        for place in tuples:
            given: Sequence[Any] = args[place]
            args[place] = tuple(_laid_out(node, x, next(inputs)) for x in given)
        node.args = tuple(args)


def _laid_out(before: Node, operand: Any, taken_by: Node) -> Any:
    expected = value(taken_by)
    if not is_tensor(operand) or not isinstance(expected, Tensor):
        return operand
    if not (has_strides(value(operand)) and has_strides(expected)):
        return operand
    pairs = zip(value(operand).stride(), expected.stride(), strict=True)
    if all(certainly(one == other) for one, other in pairs):  # along dimensions of 1, too
        return operand
    return laid_out(before, operand, expected)
