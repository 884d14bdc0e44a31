"""Functionalizes a captured graph: writes become new values, copied to inputs at the end."""

from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload
from torchlayers.fx.nodes import (
    has_strides,
    is_random,
    is_tensor,
    may_overlap,
    memory_of,
    mode_of,
    statically_true,
    value,
)
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.fx.subgraph_tracer import compile_lock
from torchlayers.fx.writes import is_write, written_by, written_inputs
from torchlayers.transforms.functionalize import functionalize


def without_mutations(graph: GraphModule) -> GraphModule | None:
    """Returns the graph with operators that write nothing, except copies to inputs at the end.

    An input that is written must share no memory with another input.

    Returns:
        None where one of the operators can't be functionalized, or where elements of an input
        that is written share memory with each other.
    """
    writing = [node for node in graph.graph.nodes if is_write(node)]
    if not writing or _only_final_copies(writing):
        return graph
    if any(may_overlap(value(node)) for node in written_inputs(graph)):
        return None
    if not all(has_strides(value(target)) for node in writing for target in written_by(node)):
        return None
    inputs = [value(node) for node in graph.graph.find_nodes(op="placeholder")]
    mode = mode_of(graph.graph)
    try:
        # torch notes the node that runs for all threads, also for one that compiles.
        with compile_lock(), mode or nullcontext():
            run = functionalize(_LayoutPreservingInterpreter(graph).run)
            functional = trace_operators(run, *inputs)
    except (RuntimeError, ValueError):  # a mutating custom op, set_, an impossible view
        return None
    for old, new in zip(
        graph.graph.find_nodes(op="placeholder"),
        functional.graph.find_nodes(op="placeholder"),
        strict=True,
    ):
        new.meta = dict(old.meta)
    end = functional.graph.output_node()
    for copy in [node for node in functional.graph.nodes if is_write(node)]:
        end.prepend(copy)
    return functional


class _LayoutPreservingInterpreter(Interpreter):
    """Runs the graph so that tensors keep their layouts when they are written.

    In the functional graph a write is a new value, from which views are recreated. Some operators
    (masked_fill, index_add) return contiguous memory for any input: after such a write to a
    transpose, the base would have the rows of the transpose in memory, and view would fail.
    """

    def run_node(self, node: Node) -> Any:
        if (operator := _without_write(node)) is None:
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        return args[0].copy_(operator(*args, **kwargs))


def _without_write(node: Node) -> OpOverload | None:
    """Returns the out-of-place variant of an operator that writes to non-contiguous memory."""
    if not is_write(node) or is_random(node) or node.target is aten.copy_.default:
        return None
    target: Any = node.target
    if torch.Tag.inplace_view in target.tags or written_by(node) != [node.args[0]]:
        return None
    namespace, name = schema_of(target).name.split("::")
    if not name.endswith("_") or _is_contiguous(value(node.args[0])):
        return None
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    operator = getattr(packet, target._overloadname, None)
    is_same = operator is not None and _types_taken(operator) == _types_taken(target)
    return operator if is_same else None  # pow_.Scalar(x, 2) is not pow.Scalar(2, x)


def _types_taken(operator: Any) -> list[str]:
    return [str(argument.type) for argument in schema_of(operator).arguments]


def _is_contiguous(tensor: torch.Tensor) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not (statically_true(size == 1) or statically_true(stride == expected)):
            return False
        expected = expected * size
    return True


def first_write_to_part_of_complex(graph: GraphModule) -> Node | None:
    """The first operator that writes to the real or imaginary parts of complex numbers."""
    writes = (
        node
        for node in graph.graph.nodes
        if is_write(node)
        for target in written_by(node)
        if is_tensor(target) and is_tensor(memory_of(target))
        if value(memory_of(target)).is_complex() and not value(target).is_complex()
    )
    return next(writes, None)


def _only_final_copies(writing: list[Node]) -> bool:
    """Whether only final copies write, as in a graph that has been functionalized before."""
    targets = _targets(writing)
    last: Any = writing[-1].next
    while last.op == "call_function" and memory_of(last) in targets:
        last = last.next
    return last.op == "output" and all(
        _is_final_copy(node, targets) and (node.next in writing or node is writing[-1])
        for node in writing
    )


def _is_final_copy(node: Node, targets: list[Node]) -> bool:
    if node.target is not aten.copy_.default:
        return False
    target, source = node.args[:2]
    return (
        isinstance(target, Node)
        and target.op == "placeholder"
        and isinstance(source, Node)
        and memory_of(source) not in targets
    )


def _targets(writing: list[Node]) -> list[Node]:
    return [memory_of(target) for node in writing for target in written_by(node)]
