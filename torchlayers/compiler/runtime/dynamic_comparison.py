"""Compares a graph with symbolic sizes with a capture for the sizes of one call.

NOTE [A size that is a number] in dynamic_shapes.py says why.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.compiler.capture.recording import CapturedGraph, OutputSource
from torchlayers.compiler.capture.state.carried_tensors import CarriedNumber
from torchlayers.compiler.passes.graph_queries import inputs_of, outputs_of
from torchlayers.compiler.runtime.compare import Run
from torchlayers.fx.nodes import value
from torchlayers.fx.program import replay


def are_alike(alone: CapturedGraph, dynamic: CapturedGraph) -> bool:
    """Whether a capture for other sizes has the same structure, and the same captured tensors."""
    if alone.gradients is not None or alone.constants != dynamic.constants:
        return False
    of_alone, of_dynamic = _captured_by_place(alone), _captured_by_place(dynamic)
    first, end = len(of_alone) - alone.constants, len(of_dynamic) - dynamic.constants
    sizes = {*_carried_sizes(dynamic)}
    return (
        of_alone[:first] == [key for i, key in enumerate(of_dynamic[:end]) if i not in sizes]
        and all(map(_are_same, alone.captured[first:], dynamic.captured[end:]))
        and alone.effects.writes.names == dynamic.effects.writes.names
        and alone.out_spec == dynamic.out_spec
        and _order(alone, dynamic) is not None
    )


def _captured_by_place(captured_graph: CapturedGraph) -> list[Any]:
    """What tells the captured tensors from others: places for those that are read at each call."""
    carried = {
        state.position: (type(state), *(place.identity for place in state.places))
        for state in captured_graph.carried
    }
    return [carried.get(i, id(tensor)) for i, tensor in enumerate(captured_graph.captured)]


def _carried_sizes(captured_graph: CapturedGraph) -> list[int]:
    """The positions of captured tensors that carry symbolic integers."""
    numbers = [state for state in captured_graph.carried if isinstance(state, CarriedNumber)]
    return [state.position for state in numbers if state.is_size]


def _are_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _order(alone: CapturedGraph, dynamic: CapturedGraph) -> dict[int, Any] | None:
    """For each value that the dynamic graph computes, which one it is of the other, or a number.

    A size that is a result is computed by one graph, and a constant of the other. Returns None if
    they compute different things.
    """
    order: dict[int, Any] = {}
    if len(alone.outputs) != len(dynamic.outputs):
        return None
    used = set[int]()
    for of_alone, of_dynamic in zip(alone.outputs, dynamic.outputs, strict=True):
        if of_dynamic.source == "computed" and of_alone.source == "constant":
            order[of_dynamic.value] = of_alone
        elif of_dynamic.source != of_alone.source:
            return None
        elif of_dynamic.source in ("computed", "number"):
            order[of_dynamic.value] = of_alone
            used.add(of_alone.value)
        elif of_dynamic.value != of_alone.value:
            return None
    stored = [i for i in range(alone.computed) if i not in used]
    places = [i for i in range(dynamic.computed) if i not in order]
    values = [value(node) for node in outputs_of(dynamic.graph)]
    numbers = [i for i in places if not isinstance(values[i], Tensor)]
    order.update((i, OutputSource("constant", _ANY)) for i in numbers)
    places = [i for i in places if i not in numbers]
    if len(stored) != len(places):
        return None
    for place, index in zip(places, stored, strict=True):
        order[place] = OutputSource("computed", index)
    return order


class _Any:
    """Equals everything: an integer that calls store, which the other capture does not compute."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


_ANY = _Any()


def replay_in_order_of(alone: CapturedGraph, dynamic: CapturedGraph) -> Run:
    """Replays a capture for certain sizes, and returns what the dynamic graph computes.

    Its first call has these sizes. For others, for which the comparison came before, it replays the
    dynamic graph.
    """
    run, of_others, order = replay(alone.graph), replay(dynamic.graph), _order(alone, dynamic)
    assert order is not None
    count = len(inputs_of(dynamic.graph)) - len(dynamic.captured)
    sizes = {count + position for position in _carried_sizes(dynamic)}
    shapes: list[torch.Size] = []

    def call(tensors: list[Tensor]) -> Sequence[Any]:
        now = [tensor.shape for tensor in tensors]
        if now != (shapes or now):
            return of_others(tensors)
        shapes[:] = now
        computed = run([tensor for i, tensor in enumerate(tensors) if i not in sizes])
        return [
            output.value if output.source == "constant" else computed[output.value]
            for _, output in sorted(order.items())
        ]

    return call
