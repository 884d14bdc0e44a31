"""Runs the original function in place of its captured graph: for autograd, or after an error.

NOTE [After an error]
An exception may come in the middle of a function, after it has written to Python or to tensors. A
captured graph writes last, so after an error in one the function itself runs, and raises its own.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.state.iterators import values_found_again, values_shared
from torchlayers.compiler.passes.graph_queries import (
    communicates,
    final_copies,
    generators_of,
    has_effects,
    is_functional,
)
from torchlayers.compiler.runtime.compare import Run, random_state
from torchlayers.core import pytree, tracing_state


class UncompiledCall:
    """Calls the original function with the tensors that a captured graph takes.

    It returns those that the graph computes.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        captured_graph: CapturedGraph,
    ) -> None:
        self._leaves = pytree.TensorLeaves((tuple(args), kwargs))
        self.arguments = len(self._leaves.tensors)
        self._leaves.tensors.clear()  # it is called with others
        self._func = func
        self._outputs = captured_graph.outputs
        self._count = captured_graph.computed
        self._writes = captured_graph.effects.writes

    @tracing_state.uncompiled
    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        args, kwargs = self._leaves.put_in(tensors)  # captured ones follow
        results = pytree.leaves(self._func(*args, **kwargs))
        computed: list[Any] = [None] * self._count
        for result, (source, value) in zip(results, self._outputs, strict=True):
            if source == "computed":
                computed[value] = result
            elif source == "number":
                dtype = torch.float64 if isinstance(result, float) else torch.int64
                computed[value] = torch.tensor(result, dtype=dtype)
        for index, tensor in self._writes.outputs():
            computed[index] = tensor
        return computed


def around_errors(
    uncompiled: UncompiledCall, captured_graph: CapturedGraph, graph: GraphModule, grad: bool
) -> Callable[[Run], Run]:
    """Returns what wraps runs of a graph so that the function runs after an error.

    Args:
        graph: the simplified graph.
        grad: whether grad mode was on when the function was called.
    """
    changes_state = any(captured_graph.effects) or final_copies(graph)
    if not (changes_state and is_functional(graph) and computes_only(graph)):
        return lambda run: run
    draws, numbers = generators_of(graph), captured_graph.effects.writes.numbers
    any_iterator = numbers is not None and bool(numbers.iterators)
    if numbers is not None and not numbers.restored:
        numbers = None

    def around(run: Run) -> Run:
        def call(tensors: list[Tensor]) -> Sequence[Tensor]:
            random = random_state(draws)
            states = numbers.states() if numbers is not None else ()
            with values_shared() if any_iterator else nullcontext():
                try:
                    return run([*tensors])
                except Exception:
                    if random is not None:
                        random.restore()
                    if numbers is not None:
                        numbers.rewind(states)
                with torch.set_grad_enabled(grad), values_found_again():
                    return uncompiled(tensors)

        return call

    return around


def computes_only(graph: GraphModule) -> bool:
    """Whether operators do nothing that another run would do twice, apart from writes."""
    return not (communicates(graph) or has_effects(graph))
