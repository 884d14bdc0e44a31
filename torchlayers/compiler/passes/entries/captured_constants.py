"""Tells the passes the values of a captured graph's constants, and takes over those that they make.

Nothing but the graph refers to its constants (CapturedGraph.constants), so that they are the same
at each call. Where a pass computes others from them, both graphs get these as further inputs, and
the captured one does not read them.
"""

import contextlib
from collections.abc import Iterator

from torch.fx import GraphModule, Node

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.entries.entry_writer import CONSTANT
from torchlayers.compiler.passes.graph_queries import inputs_of


@contextlib.contextmanager
def values_of_constants(captured_graph: CapturedGraph) -> Iterator[tuple[int, Node | None]]:
    """Lets passes know the values inside. Yields the place after them, and the input before it."""
    inputs = inputs_of(captured_graph.graph)
    gradients = captured_graph.gradients
    end = len(inputs) - (len(gradients.of_outputs) if gradients is not None else 0)
    end -= captured_graph.from_parts
    constants = inputs[end - captured_graph.constants : end]
    values = captured_graph.captured[len(captured_graph.captured) - captured_graph.constants :]
    for node, tensor in zip(constants, values, strict=True):
        node.meta[CONSTANT] = tensor
    try:
        yield end, inputs[end - 1] if inputs else None
    finally:
        for node in constants:
            del node.meta[CONSTANT]


def simplify_captured(
    captured_graph: CapturedGraph, fuse_small: bool = False
) -> tuple[CapturedGraph, GraphModule]:
    """Simplifies a captured graph with the values of its constants.

    Args:
        captured_graph: its graph may get further inputs.
        fuse_small: as for ``simplify``.
    Returns:
        The captured graph, with the new constants, and the simplified one: both take the arguments,
        the captured tensors, and cotangents.
    """
    if not captured_graph.constants:
        return captured_graph, simplify(captured_graph.graph, fuse_small)
    with values_of_constants(captured_graph) as (end, last):
        graph = simplify(captured_graph.graph, fuse_small)
    constants = [node.meta.pop(CONSTANT, None) for node in inputs_of(graph)][end:]
    new = [tensor for tensor in constants if tensor is not None]
    for node in inputs_of(graph)[end : end + len(new)]:
        with captured_graph.graph.graph.inserting_after(last):
            last = captured_graph.graph.graph.placeholder(node.name)
        last.target, last.meta = last.name, dict(node.meta)
    captured_graph.graph.recompile()
    captured = captured_graph._replace(
        captured=[*captured_graph.captured, *new], constants=captured_graph.constants + len(new)
    )
    return captured, graph
