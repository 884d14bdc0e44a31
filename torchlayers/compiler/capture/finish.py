"""Makes the result of a capture that has run: the graph, the guards and the writes."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from torchlayers.compiler.capture.capture_run import Capture
from torchlayers.compiler.capture.errors import (
    HiddenTensorError,
)
from torchlayers.compiler.capture.module_calls import (
    CalledModules,
)
from torchlayers.compiler.capture.optimizers import (
    places_of_optimizer,
)
from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.state.guarded_place import GuardedPlace
from torchlayers.compiler.capture.state.guards import Guards, find_guarded_places
from torchlayers.compiler.capture.state.python_writes import (
    PythonWrites,
)
from torchlayers.compiler.capture.state.released_guards import release_guards
from torchlayers.compiler.capture.values.reads import (
    Read,
)
from torchlayers.core.torch_private import FakeTensor
from torchlayers.fx.trial_nodes import drop_trial_nodes


def finish(capture: Capture, graph: GraphModule, modules: CalledModules) -> CapturedGraph:
    capture.subscripts.refuse_what_differs(graph.graph)
    if any(isinstance(x, FakeTensor) for module in graph.modules() for x in _held_by(module)):
        raise HiddenTensorError(capture.func)
    constants = _constants_as_inputs(graph)
    captured = [tensor for tensor, _ in capture.captured.values()]
    results = {id(out.value) for out in capture.outputs if out.source == "constant"}
    reads = [] if capture.reads is None else capture.reads.performed
    places, carried, lost, found_at = release_guards(
        capture.effects.writes,
        captured,
        _guarded_places(capture, modules),
        capture.replaced,
        results,
        bool(reads),
    )
    renewed = {id(captured[state.position]) for state in carried if state.position is not None}
    ahead = [node for node in capture.inputs if node not in capture.cotangents]
    first = next(iter(graph.graph.nodes))
    anchor = Node(graph.graph, "anchor", "placeholder", "anchor", (), {})
    first.prepend(anchor)
    for node in [*ahead, *constants, *capture.cotangents]:
        anchor.prepend(node)
    anchor._remove_from_list()
    drop_trial_nodes(graph.graph)
    _drop_dead(graph.graph, reads)
    for node in capture.unused:
        graph.graph.erase_node(node)
    graph.recompile()
    return CapturedGraph(
        graph,
        [*captured, *constants.values()],
        capture.out_spec,
        capture.outputs,
        capture.gradients,
        len(constants),
        capture.effects._replace(writes=_written_at_calls(capture).find_at(found_at)),
        capture.steps.stepped,
        [hooked for hooked in capture.hooked if id(hooked.tensor) not in renewed],
        Guards(places) if places else None,
        carried,
        lost,
        reads,
    )


def _guarded_places(capture: Capture, called: CalledModules) -> list[GuardedPlace]:
    """Returns the places of the Python state that the function has read."""
    places = called.places(of_scripted_only=capture.guarded)
    places += [each for of in capture.steps.stepped for each in places_of_optimizer(of)]
    if not capture.guarded:
        return places
    constants = [leaf for leaf in capture.leaves if not isinstance(leaf, Tensor)]
    drawn = {id(state.thing) for state in capture.effects.writes.drawn_from}
    drawn |= {*map(id, capture.effects.writes.arrays)}
    modules = [each for each in called.modules() if not _is_part(capture, each)]
    guarded = find_guarded_places(capture.func, constants, modules, capture.ran.codes, drawn)
    return [*guarded, *places, *capture.effects.writes.guards()]


def _written_at_calls(capture: Capture) -> PythonWrites:
    """Returns the writes as calls need them."""
    writes = capture.effects.writes.forgetting()
    if writes.numbers is None:
        return writes
    drawn = [
        (place, expression, tensor.dtype)
        for tensor, expression in writes.numbers.tensors
        if id(tensor) in capture.captured and writes.numbers.is_drawn(expression)
        if (place := capture.watch.input_of(tensor)) is not None
    ]
    return writes._replace(drawn=drawn)


def _is_part(capture: Capture, module: torch.nn.Module) -> bool:
    """Whether a module is a branch or a loop body that was traced for this capture."""
    return isinstance(module, GraphModule) and any(
        getattr(node.meta.get("val"), "fake_mode", None) is capture.mode
        for node in module.graph.nodes
    )


def _drop_dead(graph: Graph, reads: Sequence[Read]) -> None:
    """Drops nodes without users, but not before a read: after another answer they may have some."""
    before = set[Node]()
    if reads:
        before.update(itertools.takewhile(lambda node: node is not reads[-1].node, graph.nodes))
        before.add(reads[-1].node)
    graph.eliminate_dead_code(lambda node: node in before or node.is_impure())


def _held_by(module: torch.nn.Module) -> list[Any]:
    return [*vars(module).values(), *module.buffers(recurse=False)]


def _constants_as_inputs(graph: GraphModule) -> dict[Node, Tensor]:
    """Turns the tensors that the graph holds into inputs; returns the tensors by node."""
    uses: dict[str, list[Node]] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        if isinstance(getattr(graph, str(node.target)), Tensor):
            uses.setdefault(str(node.target), []).append(node)
    constants: dict[Node, Tensor] = {}
    for count, (name, nodes) in enumerate(uses.items()):
        with graph.graph.inserting_before(nodes[0]):
            placeholder = graph.graph.placeholder(f"constant_{count}")
        placeholder.meta = dict(nodes[0].meta)
        constants[placeholder] = getattr(graph, name)
        for node in nodes:
            node.replace_all_uses_with(placeholder)
            graph.graph.erase_node(node)
        delattr(graph, name)
    return constants
