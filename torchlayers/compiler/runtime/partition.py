"""Partitions a captured graph with its reverse pass into a forward and a backward graph."""

import importlib
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from torchlayers.compiler.passes.graph_queries import final_copies, inputs_of, operators, outputs_of
from torchlayers.core.operators import aten
from torchlayers.core.tracing_state import patched
from torchlayers.fx.recomputation import RECOMPUTATION_ID


class PartitionedGraph(NamedTuple):
    """``forward`` returns its results and then the residuals; ``backward`` takes the residuals and
    then the cotangents. ``saved_inputs`` has, for each residual that is an input, its index, and
    None for the others.
    """

    forward: GraphModule
    backward: GraphModule
    saved_inputs: list[int | None]


def partition(joint: GraphModule, results: int, cotangents: int) -> PartitionedGraph:
    """Splits the graph so that the fewest bytes are saved; torch chooses what is recomputed.

    Args:
        joint: a functional graph, which returns ``results`` results and then gradients. Its last
            ``cotangents`` inputs are cotangents.
    """
    functorch: Any = importlib.import_module("functorch.compile")  # slow to import

    inputs = inputs_of(joint)
    first = len(inputs) - cotangents
    for i, node in enumerate(inputs):  # torch finds inputs by these names, now in lower case only
        name = f"primals_{i}" if i < first else f"tangents_{i - first}"
        node._rename(name)
        node.target = name

    recomputes = _keep_recomputed(joint)
    written = _writes_as_results(joint, results)
    # torch's CSE would merge recomputed nodes with the originals.
    with torch.no_grad(), patched(functorch.config, {"cse": not recomputes}):
        forward, backward = functorch.min_cut_rematerialization_partition(
            joint, None, num_fwd_outputs=results + len(written)
        )
    _drop_repeated(forward, backward)
    _results_as_writes(forward, results, written)
    places = {node: i for i, node in enumerate(inputs_of(forward))}
    saved = outputs_of(forward)[results:]
    return PartitionedGraph(forward, backward, [places.get(node) for node in saved])


def _keep_recomputed(joint: GraphModule) -> bool:
    """Tags nodes that a checkpoint recomputes so that torch does not save them; whether any are."""
    recomputed = [node for node in operators(joint) if RECOMPUTATION_ID in node.meta]
    for node in recomputed:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = node.meta[RECOMPUTATION_ID]
    return bool(recomputed)


def _writes_as_results(graph: GraphModule, results: int) -> list[int]:
    """Turns final copies to inputs into further results; returns the indices of those inputs."""
    copies = final_copies(graph)
    output = graph.graph.output_node()
    returned = outputs_of(graph)
    values: list[Any] = []
    for node in copies:
        values.append(node.args[1])
        returned = [node.args[1] if other is node else other for other in returned]
        node.replace_all_uses_with(node.args[1])  # type: ignore[arg-type]
        graph.graph.erase_node(node)
    output.args = ([*returned[:results], *values, *returned[results:]],)
    graph.recompile()
    return [*copies.values()]


def _drop_repeated(forward: GraphModule, backward: GraphModule) -> None:
    """Removes unread random draws that torch repeats in the backward."""
    of_forward = {node.name for node in operators(forward)}
    for node in reversed(backward.graph.nodes):
        if not node.users and node.name in of_forward:
            backward.graph.erase_node(node)
    backward.recompile()


def _results_as_writes(forward: GraphModule, results: int, written: list[int]) -> None:
    """Reverts _writes_as_results in the forward graph."""
    if not written:
        return
    output = forward.graph.output_node()
    returned = outputs_of(forward)
    inputs = inputs_of(forward)
    targets = [inputs[i] for i in written]
    returned = [_without_write(forward, node, targets) for node in returned]
    values = returned[results : results + len(written)]
    for target, source in zip(targets, values, strict=True):
        with forward.graph.inserting_before(output):
            node = forward.graph.call_function(aten.copy_.default, (target, source))
            node.meta = dict(target.meta)
    output.args = ([*returned[:results], *returned[results + len(written) :]],)
    forward.recompile()


def _without_write(forward: GraphModule, node: Any, targets: list[Node]) -> Any:
    """Returns a copy of the value if it is an input that will be overwritten."""
    if node not in targets:
        return node
    with forward.graph.inserting_before(forward.graph.output_node()):
        copy = forward.graph.call_function(aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy
