"""A recording with its reverse pass, split in two: the forward graph, and the backward one."""

from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from torchlayers.compiler.passes.graph_queries import final_copies, inputs_of, operators, outputs_of
from torchlayers.core.tracing_state import patched
from torchlayers.fx.capture_lock import recording
from torchlayers.fx.recomputation import NUMBER


class Split(NamedTuple):
    """``forward`` returns its results and then what ``backward`` needs; this takes that, and
    then cotangents. ``saved_inputs`` tells, for each saved value, the input that it is, or None.
    """

    forward: GraphModule
    backward: GraphModule
    saved_inputs: list[int | None]


def split(joint: GraphModule, results: int, cotangents: int) -> Split:
    """The two graphs that save the fewest bytes, by torch's own choice of what to compute again.

    Args:
        joint: functional; it returns so many results, and then gradients. Its last inputs are so
            many cotangents.
    """
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    inputs = inputs_of(joint)
    first = len(inputs) - cotangents
    for i, node in enumerate(inputs):  # torch goes by these names, and knows capitals no more
        name = f"primals_{i}" if i < first else f"tangents_{i - first}"
        node._rename(name)
        node.target = name

    recomputes = _keep_recomputed(joint)
    written = _writes_as_results(joint, results)
    # torch would share what is computed again with what was computed first.
    with recording(), torch.no_grad(), patched(config, {"cse": not recomputes}):
        forward, backward = min_cut_rematerialization_partition(
            joint, None, num_fwd_outputs=results + len(written)
        )
    _drop_repeated(forward, backward)
    _results_as_writes(forward, results, written)
    places = {node: i for i, node in enumerate(inputs_of(forward))}
    saved = outputs_of(forward)[results:]
    return Split(forward, backward, [places.get(node) for node in saved])


def _keep_recomputed(joint: GraphModule) -> bool:
    """Says in torch's words that what a checkpoint computes again is not saved; if there is any."""
    recomputed = [node for node in operators(joint) if NUMBER in node.meta]
    for node in recomputed:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = node.meta[NUMBER]
    return bool(recomputed)


def _writes_as_results(graph: GraphModule, results: int) -> list[int]:
    """What is copied to inputs becomes results after the others; returns which inputs."""
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
    """torch has the backward, too, draw numbers that nobody reads."""
    of_forward = {node.name for node in operators(forward)}
    for node in reversed(backward.graph.nodes):
        if not node.users and node.name in of_forward:
            backward.graph.erase_node(node)
    backward.recompile()


def _results_as_writes(forward: GraphModule, results: int, written: list[int]) -> None:
    """The other way round, once the graph is split."""
    if not written:
        return
    output = forward.graph.output_node()
    returned = outputs_of(forward)
    inputs = inputs_of(forward)
    targets = [inputs[i] for i in written]
    returned = [_kept(forward, node, targets) for node in returned]
    values = returned[results : results + len(written)]
    for target, source in zip(targets, values, strict=True):
        with forward.graph.inserting_before(output):
            node = forward.graph.call_function(torch.ops.aten.copy_.default, (target, source))
            node.meta = dict(target.meta)
    output.args = ([*returned[:results], *returned[results + len(written) :]],)
    forward.recompile()


def _kept(forward: GraphModule, node: Any, targets: list[Node]) -> Any:
    """A value that outlives the write to the input that it is."""
    if node not in targets:
        return node
    with forward.graph.inserting_before(forward.graph.output_node()):
        copy = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy
