"""Restores the aliasing and strides of a graph's outputs: new memory, or a view of an input.

The other passes preserve only values. After them an output may be an input's own memory (x * 1), or
the same as another output, and a caller who writes to one would write to both. Also, of two tensors
that share memory, one may require grad and the other not.
"""

from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
    calls,
    copy_with_strides,
    emit,
    is_dense,
    is_tensor,
    memory_of,
    same_layout,
    span,
    statically_true,
    value,
)
from torchlayers.fx.writes import written_inputs


class OutputContract(NamedTuple):
    """The aliasing of a graph's outputs, in lists with an entry per output."""

    values: list[Any]  # fake values
    inputs: list[int | None]  # the input whose memory it has
    groups: list[Node | None]  # the node that allocated its memory
    detached: list[bool]  # whether it is a detached view, not a view for autograd


def output_contract(graph: GraphModule) -> OutputContract:
    """Returns the aliasing of the graph's outputs, before passes change it."""
    positions = {node: at for at, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    memories = [memory_of(node) if is_tensor(node) else None for node in _outputs(graph)]
    return OutputContract(
        [value(node) if is_tensor(node) else None for node in _outputs(graph)],
        [None if memory is None else positions.get(memory) for memory in memories],
        memories,
        [calls(node, aten.detach.default) for node in _outputs(graph)],
    )


def keep(graph: GraphModule, promise: OutputContract) -> None:
    """Copies outputs that would newly share memory, and those with other strides."""
    written = written_inputs(graph)
    first_copy = next((node for node in graph.graph.nodes if node in written.values()), None)
    end = graph.graph.output_node()
    for copy in {*written.values()}:
        source = copy.args[1]
        if isinstance(source, Node) and memory_of(source) in written:
            copy.update_arg(1, emit(first_copy or end, aten.clone.default, source))
    placeholders = graph.graph.find_nodes(op="placeholder")
    taken: dict[Node, Node | None] = {}
    outputs = _outputs(graph)
    for at, (fake, position, group) in enumerate(zip(*promise[:3], strict=True)):
        if fake is None:
            continue
        node, before = outputs[at], first_copy or end
        memory = memory_of(node)
        if position is not None:
            whole = placeholders[position]
            if whole in written:
                outputs[at] = _view_of_input(end, written[whole], fake)
            elif memory is not whole:
                outputs[at] = _view_of_input(end, whole, fake)
            continue
        if not _has_layout(value(node), fake):
            outputs[at] = copy_with_strides(before, node, fake)
        elif memory.op == "placeholder" or taken.get(memory, group) is not group:
            outputs[at] = emit(before, aten.clone.default, node)
            if not _has_layout(value(outputs[at]), fake):
                outputs[at] = copy_with_strides(before, node, fake)
        taken.setdefault(memory_of(outputs[at]), group)
    _unalias_outputs(outputs, promise.detached, end)
    end.args = (outputs,)


def _unalias_outputs(outputs: list[Any], detached: list[bool], end: Node) -> None:
    """Makes all outputs distinct tensors: x.detach() is not x, although they share memory."""
    seen: set[Node] = set()
    for at, node in enumerate(outputs):
        if not is_tensor(node):
            continue
        if detached[at]:
            outputs[at] = emit(end, aten.detach.default, node)
        elif node.op == "placeholder" or node in seen:
            outputs[at] = emit(end, aten.alias.default, node)
        seen.add(node)


def _outputs(graph: GraphModule) -> list[Any]:
    return list(graph.graph.output_node().args[0])  # type: ignore[arg-type]


def _has_layout(actual: Tensor, promised: Tensor) -> bool:
    """Whether strides are as expected; a result with gaps or strides of 0 may have any."""
    return same_layout(actual, promised) or not is_dense(promised)


def _view_of_input(before: Node, whole: Node, fake: Tensor) -> Node:
    view = whole
    if fake.dtype != value(whole).dtype:
        real = value(whole).is_complex() and not fake.is_complex()
        view = (
            emit(before, aten.view_as_real.default, whole)
            if real
            else emit(before, aten.view.dtype, whole, fake.dtype)
        )
    if not (statically_true(fake.storage_offset() == 0) or statically_true(fake.numel() == 0)):
        # Inputs may have any storage offset at a call, and as_strided starts from it.
        offset = fake.storage_offset()
        flat = emit(before, aten.as_strided.default, view, [offset + span(fake)], [1])
        view = emit(before, aten.slice.Tensor, flat, 0, offset)
    view = emit(before, aten.as_strided.default, view, list(fake.shape), list(fake.stride()))
    if fake.is_conj():
        view = emit(before, aten._conj.default, view)
    return emit(before, aten._neg_view.default, view) if fake.is_neg() else view
