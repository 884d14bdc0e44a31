"""Computes what is the same in each iteration of a while_loop once, before the loop.

A solver's matvec linearizes a function at a point: forward values and transposed weights that do
not depend on the iterate.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchlayers.compiler.passes.dead_code import drop_dead
from torchlayers.compiler.passes.graph_copy import copied
from torchlayers.core.operators import aten, higher_order
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import (
    calls,
    emit,
    has_effect,
    is_conj_or_neg,
    is_tensor,
    memory_of,
    value,
    view_base,
)
from torchlayers.fx.writes import is_write, written_by

# Besides elementwise operators and views. A loop may run no iteration: no operator here raises an
# error that depends on values.
_COMPUTED = {
    aten.mm.default, aten.bmm.default, aten.mv.default, aten.addmm.default, aten.baddbmm.default,
    aten.dot.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim,
    aten.clone.default, aten.cat.default, aten.convolution.default, aten.amax.default,
    aten.linalg_vector_norm.default, aten.full.default, aten.zeros.default, aten.ones.default,
    aten.arange.default, aten.arange.start, aten.eye.default, aten.tril.default, aten.triu.default,
}  # fmt: skip


def hoist_invariants(graph: GraphModule) -> None:
    """Exact. Each body is replaced by a copy, with further inputs."""
    for node in [*graph.graph.find_nodes(op="call_function", target=higher_order.while_loop)]:
        condition, body, carried, others = node.args
        if not (_is_alone(graph, condition) and _is_alone(graph, body)):
            continue
        module: Any = graph.get_submodule(str(body.target))
        operands = [*carried, *others]
        invariants = _frontier(module, len(carried), operands)
        if not invariants:
            continue
        first, second = (_own_copy(graph, node_inside) for node_inside in (condition, body))
        names = {node_inside.name: node_inside for node_inside in second.graph.nodes}
        outside = dict(zip(second.graph.find_nodes(op="placeholder"), operands, strict=True))
        for name in (node_inside.name for node_inside in invariants):
            inside = names[name]
            operands.append(_computed_before(node, inside, outside))
            _new_input(first, inside)
            taken = _new_input(second, inside)
            outside[taken] = operands[-1]  # another may be computed of it
            for user in [*inside.users]:
                user.replace_input_with(inside, taken)
        node.args = (condition, body, carried, tuple(operands[len(carried) :]))
        for subgraph in (first, second):
            drop_dead(subgraph)
            subgraph.recompile()


def _is_alone(graph: GraphModule, reference: Node) -> bool:
    """Whether nothing else reads this subgraph."""
    references = [
        other for other in graph.graph.find_nodes(op="get_attr") if other.target == reference.target
    ]
    return len(references) == 1 and len(reference.users) == 1


def _frontier(body: GraphModule, carried: int, operands: list[Any]) -> list[Node]:
    """The nodes to compute before the loop: the same in each iteration, and read by others."""
    inputs = [*body.graph.find_nodes(op="placeholder")]
    if len(inputs) != len(operands):
        return []
    # Memory that an iteration writes to is not the same in the next.
    writes = [node for node in body.graph.nodes if is_write(node)]
    written = {memory_of(operand) for node in writes for operand in written_by(node)}
    same = {
        operand for operand in inputs[carried:] if is_tensor(operand) and operand not in written
    }
    costs: set[Node] = set()
    for node in body.graph.nodes:
        if not (_can_move(node) and all(operand in same for operand in node.all_input_nodes)):
            continue
        if memory_of(node) in written:
            continue
        same.add(node)
        is_view = view_base(node) is not None
        if any(operand in costs for operand in node.all_input_nodes) or (
            not is_view and node.all_input_nodes
        ):
            costs.add(node)
    return [
        node
        for node in body.graph.nodes
        if node in costs
        and any(user not in same for user in node.users)
        and not any(user.op == "output" for user in node.users)
    ]


def _can_move(node: Node) -> bool:
    if node.op != "call_function" or not is_tensor(node) or has_effect(node) or is_write(node):
        return False
    if not isinstance(node.target, OpOverload) or any(is_conj_or_neg(value(node))):
        return False
    return (
        torch.Tag.pointwise in node.target.tags
        or calls(node, *_COMPUTED)
        or view_base(node) is not None
    )


def _own_copy(graph: GraphModule, reference: Node) -> GraphModule:
    copy = copied(getattr(graph, str(reference.target)))
    setattr(graph, str(reference.target), copy)
    return copy


def _computed_before(loop: Node, node: Node, outside: dict[Node, Any]) -> Any:
    if node not in outside:
        args, kwargs = map_arg(
            (node.args, dict(node.kwargs)),
            lambda operand: _computed_before(loop, operand, outside),
        )
        outside[node] = emit(loop, node.target, *args, **kwargs)  # type: ignore[arg-type]
    return outside[node]


def _new_input(body: GraphModule, like: Node) -> Node:
    last = [*body.graph.find_nodes(op="placeholder")][-1]
    with body.graph.inserting_after(last):
        new = body.graph.placeholder("invariant")
    new.target = new.name  # a unique identifier
    new.meta["val"] = value(like)
    return new
