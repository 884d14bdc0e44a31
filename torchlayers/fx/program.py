"""Replays a captured graph by a loop in C++: csrc/compiled/program.h."""

import operator
import os
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from torchlayers._C import Program, ProgramWriter, RecordedValue
from torchlayers.core import errors, operator_schema, pytree
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten, higher_order
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import value
from torchlayers.fx.size_steps import SYMBOLIC, SizeWriter
from torchlayers.fx.strides import required_strides, strides_of


def replay(graph: GraphModule, laid_out: Collection[Node] = ()) -> Program:
    """Translates the graph to a program, which takes a list of the inputs and returns the outputs.

    The program holds the tensors and modules that the graph holds now. A tensor computed in a run
    is freed after its last use. Runs are independent: they may be concurrent or nested. Symbolic
    sizes are those of the inputs of each run.

    Args:
        graph: its output is a node, or a list or a tuple of nodes and constants.
        laid_out: nodes whose values get the strides that they were captured with.
    """
    nodes = graph.graph.nodes
    inputs = [node for node in nodes if node.op == "placeholder"]
    writer = ProgramWriter(len(inputs))
    # Maps each node to a value of the program, several values, or a constant.
    env: dict[Node, Any] = {node: RecordedValue(i) for i, node in enumerate(inputs)}
    strides = required_strides(graph)  # NOTE [Recorded strides]
    strides |= {node: layout for node in laid_out if (layout := strides_of(node)) is not None}
    sizes = SizeWriter(writer, [(env[node], value(node)) for node in inputs])
    for node in nodes:
        if node.op == "get_attr":
            attribute = operator.attrgetter(str(node.target))(graph)
            is_run = isinstance(attribute, GraphModule) and all(
                u.target in _CONTROL_FLOW for u in node.users
            )
            env[node] = replay(attribute) if is_run else attribute
        elif node.op == "output":
            returned: Any = sizes.numbers(node.args[0])
            some = [returned] if isinstance(returned, Node) else returned
            return writer.finish([*map_arg(some, env.__getitem__)])
        elif node.op != "placeholder":
            env[node] = _step(writer, graph, node, env, sizes)
        if node in strides and isinstance(env[node], RecordedValue):
            env[node] = writer.lay_out(env[node], sizes.numbers(strides[node]))
    raise ValueError("torchlayers: replay: the graph has no output")


def _step(
    writer: ProgramWriter, graph: GraphModule, node: Node, env: dict[Node, Any], sizes: SizeWriter
) -> Any:
    """Writes a step for the node, if it needs one, and returns its value."""
    target: Any = node.target

    def filled(argument: Any) -> Any:
        return env[argument] if isinstance(argument, Node) else sizes.numbers(argument)

    if target in _SIZES or (target in _ARITHMETIC and isinstance(value(node), torch.SymInt)):
        operands: Any = map_aggregate(node.args, filled)
        if any(isinstance(operand, RecordedValue) for operand in operands):
            if target in _SIZES:
                return getattr(writer, _SIZES[target])(*operands)
            return writer.arithmetic(_ARITHMETIC[target], *operands)
    if isinstance(target, OpOverload) and operator_schema.is_dispatched(target):
        args, kwargs = map_aggregate((node.args, dict(node.kwargs)), filled)
        results = writer.call(*_name_of(target), args, kwargs, _description(node))
        return results[0] if len(results) == 1 else results
    if target is operator.getitem:
        source, index = node.args
        assert isinstance(source, Node)
        if not isinstance(env[source], RecordedValue):
            return env[source][index]
        if isinstance(source.target, (OpOverload, type(higher_order.scan))) and isinstance(
            index, int
        ):
            return writer.item(env[source], index)
    if target is higher_order.scan:
        operands = map_aggregate(node.args, filled)
        body, carry, xs, captured = operands
        tensors = [*carry, *xs, *captured]
        return writer.repeat(body, len(carry), len(xs), tensors, _description(node))
    return _python_step(writer, graph, node, env, sizes)


def _python_step(
    writer: ProgramWriter, graph: GraphModule, node: Node, env: dict[Node, Any], sizes: SizeWriter
) -> Any:
    """Writes a step that calls Python, as torch.fx does, for targets unknown to the dispatcher."""
    symbolic: list[Any] = []
    map_aggregate(
        (node.args, dict(node.kwargs)),
        lambda leaf: symbolic.append(leaf) if isinstance(leaf, SYMBOLIC) else None,
    )
    read: list[Any] = [*node.all_input_nodes, *symbolic]
    operands = [
        env[source] if isinstance(source, Node) else sizes.number(source) for source in read
    ]
    flat, spec = pytree.flatten(operands)
    function = _function_of(graph, node)

    def call(*inputs: Any) -> Any:
        values = iter(inputs)
        filled = [next(values) if isinstance(leaf, RecordedValue) else leaf for leaf in flat]
        known = dict(zip(map(id, read), pytree.unflatten(filled, spec), strict=True))
        args, kwargs = map_aggregate(
            (node.args, dict(node.kwargs)), lambda leaf: known.get(id(leaf), leaf)
        )
        return function(*args, **kwargs)

    values = [leaf for leaf in flat if isinstance(leaf, RecordedValue)]
    return writer.call_python(call, values, _description(node))


def _function_of(graph: GraphModule, node: Node) -> Callable[..., Any]:
    if node.op == "call_module":
        return graph.get_submodule(str(node.target))
    if node.op == "call_method":
        name = str(node.target)
        return lambda owner, *args, **kwargs: getattr(owner, name)(*args, **kwargs)
    assert callable(node.target)
    return _BRANCHING.get(node.target, node.target)


def _choose(pred: Any, true: Program, false: Program, operands: Sequence[Any]) -> Sequence[Any]:
    return (true if pred else false)([*operands])


def _repeat(
    cond: Program, body: Program, carry: Sequence[Any], captured: Sequence[Any]
) -> Sequence[Any]:
    if not cond([*carry, *captured])[0]:
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in carry]
    goes_on = True
    while goes_on:
        carry = body([*carry, *captured])
        goes_on = cond([*carry, *captured])[0]
    return carry


# Operators on subgraphs, which become programs as well.
_BRANCHING: dict[Any, Callable[..., Any]] = {
    higher_order.cond: _choose,
    higher_order.while_loop: _repeat,
}
_CONTROL_FLOW = {*_BRANCHING, higher_order.scan}

_SIZES = {aten.sym_size.int: "size", aten.sym_stride.int: "stride"}
_ARITHMETIC = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
}


def _name_of(op: OpOverload) -> tuple[str, str]:
    return schema_of(op).name, schema_of(op).overload_name


_FRAME = re.compile(r'File "(.+)", line (\d+), in .+\n +(.+)')


def _description(node: Node) -> str:
    """ "aten.mul.Tensor, recorded in train.py:41, `x * y`"."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    users = [frame for frame in frames if errors.is_user_file(frame[0])]
    if not users:
        return str(node.target)
    file, line, code = users[-1]
    return f"{node.target}, captured in {os.path.basename(file)}:{line}, `{code}`"
