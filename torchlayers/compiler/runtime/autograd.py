"""Runs compiled functions under plain autograd, with a compiled backward, to any order.

The captured graph includes the reverse pass and is split into a forward and a backward graph. Where
autograd has to differentiate the backward again (create_graph), the backward is itself a compiled
function of the inputs and the cotangents, captured by running the function once more.

The first results and the first gradients are compared with those of the unsimplified graph.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers import _C
from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import AmbientModes
from torchlayers.compiler.capture.state.carried_tensors import carried_restored
from torchlayers.compiler.capture.tensor_hooks import grad_without_hooks
from torchlayers.compiler.passes.graph_queries import generators_of, inputs_of, outputs_of
from torchlayers.compiler.runtime.autograd_call import AutogradCall
from torchlayers.compiler.runtime.backends import GraphRunner, below_autograd
from torchlayers.compiler.runtime.call import how_it_ran, must_inline
from torchlayers.compiler.runtime.compare import (
    CallSnapshot,
    Run,
    first_difference,
    run_and_compare,
    sensitivity,
)
from torchlayers.compiler.runtime.partition import partition
from torchlayers.compiler.runtime.replayed_halves import ReplayedGraph
from torchlayers.compiler.runtime.request import CompiledBackward, CompileRequest
from torchlayers.compiler.runtime.stages import as_python
from torchlayers.compiler.runtime.verify import Adopt, describe_replay, warn_mismatch
from torchlayers.core.device import RandomState
from torchlayers.core.errors import TransformError
from torchlayers.core.torch_private import dispatch_key, torch_c
from torchlayers.core.trace.calls import CompiledCode

_BATCHED = dispatch_key("Batched")

# Calls the original function with the inputs and returns the tensors that it computed.
Computed = Callable[[Sequence[Tensor]], list[Tensor]]


class DifferentiableGraph:
    """Runs a captured graph as a node of the autograd graph."""

    def __init__(
        self,
        captured_graph: CapturedGraph,
        graph: GraphModule,
        modes: AmbientModes,
        request: CompileRequest,
        computed: Computed,
        arguments: int,
        adopt: Adopt,
    ) -> None:
        assert captured_graph.gradients is not None
        self.gradients = captured_graph.gradients
        self.results = captured_graph.computed
        self.halves = partition(graph, self.results, len(self.gradients.of_outputs))
        self.saved_inputs = self.halves.saved_inputs
        self.draws = generators_of(self.halves.forward)
        self.arguments = arguments
        self.modes = modes
        self.captured = captured_graph.captured
        self._carried = captured_graph.carried
        self._numbers = captured_graph.effects.writes.numbers
        if self._numbers is not None and self._numbers.restored:
            self._numbers.saves_states = request.keeps_writes  # otherwise it draws nothing
        self._guards = captured_graph.guards
        cotangents = inputs_of(self.halves.backward)[-len(self.gradients.of_outputs) :]
        self.strides = [node.meta["val"].stride() for node in cotangents]
        self._backward_name = f"{request.name}'s backward"
        # A backward may run as Inductor's code though its forward was replayed, and vice versa:
        # what is saved has the layouts that the backward was captured for.
        saved = outputs_of(self.halves.forward)[self.results :]
        self.forward = GraphRunner(
            self.halves.forward,
            request.settings,
            request.name,
            self._adopt_forward,
            below_autograd,
            laid_out=[node for node in saved if node.op != "placeholder"],
        )
        self.backward = GraphRunner(
            self.halves.backward,
            request.settings,
            self._backward_name,
            self._adopt_backward,
            below_autograd,
        )
        self._again: CompiledBackward | None = None
        self._compile_again = request.compile_backward
        self._func = computed  # capture/state/reachable_state.py looks for this attribute
        self.name = request.name
        self.problem: str | None = None
        self.lock = threading.RLock()
        self._adopt = adopt
        self._results_checked = False
        self._keeps_writes = request.keeps_writes
        # Set until the first gradients have been compared.
        self.unsimplified: ReplayedGraph | None = None
        if request.settings.check:
            again = self.numbers_read, self.pull_back_again
            self.unsimplified = ReplayedGraph(captured_graph, *again)
        self._adopt(self._first if self.unsimplified else self)

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = AutogradCall.apply(self, None, *tensors)  # type: ignore[no-untyped-call]
        return results

    @property
    def how(self) -> str:
        if self.problem is not None:
            return describe_replay(self.problem)
        return "; ".join(dict.fromkeys([self.forward.how, self.backward.how]))

    @property
    def seconds(self) -> float:
        return self.forward.seconds + self.backward.seconds

    def wait(self, deadline: float | None) -> bool:
        waiting = [self.forward.wait, self.backward.wait]
        if self._again is not None:
            waiting.append(self._again._wait_until)
        return all([wait(deadline) for wait in waiting])

    def _first(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Runs a call whose gradients may be the first to be computed."""
        recorded = self.unsimplified
        if recorded is None:
            return self(tensors)
        call = _FirstBackward(self, recorded, tensors)

        def run(tensors: list[Tensor]) -> Sequence[Tensor]:
            results: Sequence[Tensor] = AutogradCall.apply(self, call, *tensors)  # type: ignore[no-untyped-call]
            return results

        with self.lock:
            if self.problem is None and not self._results_checked:
                results, problem = run_and_compare(
                    call.before,
                    recorded.forward,
                    run,
                    recorded.half,
                    self._keeps_writes,
                    recorded.uninitialized,
                )
                if problem is None:
                    self._results_checked = True
                    return results
                call.before.undo()
                self.is_wrong(problem)
        return run(tensors) if self.problem is None else self._replayed(tensors)

    def _replayed(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = AutogradCall.apply(self.unsimplified, None, *tensors)  # type: ignore[no-untyped-call]
        return results

    def is_wrong(self, problem: str) -> None:
        self.problem = problem
        self._adopt(self._replayed)
        warn_mismatch(self.name, problem)

    def is_right(self) -> None:
        self.unsimplified = None
        self._adopt(self)

    def _adopt_forward(self, run: Run) -> None:
        self.run_forward = run

    def _adopt_backward(self, run: Run) -> None:
        self.run_backward = run

    def pull_back(
        self, saved: list[Tensor], cotangents: list[Tensor], random: RandomState | None
    ) -> Sequence[Any]:
        """Returns the gradients, detached from the autograd graph."""
        if any(cotangent.is_conj() or cotangent.is_neg() for cotangent in cotangents):
            cotangents = [cotangent.resolve_conj().resolve_neg() for cotangent in cotangents]
        if _any_batched(cotangents):
            return self.backward.replayed([*saved, *cotangents])
        tensors = [*saved, *self.laid_out(cotangents)]
        if not _C.is_observed():
            return self.run_backward(tensors)
        with torch.profiler.record_function(f"torchlayers::compiled {self._backward_name}"):
            gradients = self.run_backward(tensors)
            _C.note_run(self)
        return gradients

    def traced_how(self) -> str:
        """How the backward runs, as traces say it."""
        return how_it_ran(self.backward.how)

    def traced_code(self) -> CompiledCode:
        """What traces say of the backward."""
        graph = self.halves.backward
        stages = [("split off, as handed to the backend", as_python(graph))]
        return CompiledCode(self._backward_name, "", "", lambda: stages)

    def laid_out(self, cotangents: list[Tensor]) -> list[Tensor]:
        """Copies the cotangents, if need be, to the strides that the backward was captured for."""
        return [*map(_with_strides, cotangents, self.strides)]

    def numbers_read(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns the numbers that a call reads, and replaces, and the states it draws from."""
        return self._numbers.of_call() if self._numbers is not None else ((), ())

    def pull_back_again(
        self,
        inputs: Sequence[Tensor],
        cotangents: list[Tensor],
        numbers: tuple[Sequence[Any], Sequence[Any]],
    ) -> Sequence[Any]:
        """Returns the gradients as differentiable functions of the inputs and the cotangents."""
        arguments, captured = tuple(inputs[: self.arguments]), inputs[self.arguments :]
        if not self._carried and self._numbers is None:
            if self._again is None:
                backward = functools.partial(self._backward, self.captured)
                self._again = self._compile_again(backward, self._backward_name)
            return self._again(arguments, tuple(cotangents))  # type: ignore[no-any-return]
        # The function is captured again for each call, with the state that this call has found.
        values, states = numbers
        places = self._numbers.places if self._numbers is not None else ()
        rewound: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._numbers is not None and states:
            rewound = self._numbers.rewound(states)
        with carried_restored(self._carried, captured, places, values), rewound:
            backward = functools.partial(self._backward, captured)
            again = self._compile_again(backward, self._backward_name)
            return again(arguments, tuple(cotangents))  # type: ignore[no-any-return]

    def _backward(
        self, captured: Sequence[Tensor], arguments: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> Any:
        inputs = [*arguments, *captured]
        if self._guards is not None and (changed := self._guards.failed()):
            raise TransformError(
                f"torchlayers: compile: the backward of {self.name} is being differentiated "
                "(create_graph), which runs the function again, but a Python value that it read "
                f"has changed: {changed}. Differentiate before that changes, or call the function "
                "again."
            )
        with torch.enable_grad(), self.modes.restored():
            results = self._func(arguments)
        with torch_c._DisableAutocast():
            return grad_without_hooks(
                [results[i] for i in self.gradients.of_outputs],
                [inputs[i] for i in self.gradients.by_inputs],
                cotangents,
                create_graph=True,
            )


class _FirstBackward:
    """A call whose gradients are verified against the captured graph, unless an earlier one was."""

    def __init__(
        self, derivative: DifferentiableGraph, recorded: ReplayedGraph, tensors: list[Tensor]
    ) -> None:
        self._derivative = derivative
        self._recorded = recorded
        self.before = CallSnapshot(tensors, recorded.written, recorded.draws)
        self._versions = [*map(_version, tensors)]

    def pull_back(
        self, saved: list[Tensor], cotangents: list[Tensor], random: RandomState | None
    ) -> Sequence[Any]:
        derivative = self._derivative
        with derivative.lock:
            is_right = derivative.unsimplified is None
            # If an input has been written to since, the gradients of a later call are compared.
            may_compare = not _any_batched(cotangents) and not self._is_overwritten()
            if is_right or (derivative.problem is None and not may_compare):
                return derivative.pull_back(saved, cotangents, random)
            if not may_compare:
                raise _no_backward_error(derivative.name)
            inputs = [*self._inputs(), *derivative.laid_out(cotangents)]
            expected = self._reverse(inputs)
            if derivative.problem is not None:
                return expected
            gradients = derivative.pull_back(saved, cotangents, random)
            if generators_of(derivative.halves.backward) is not None:
                return gradients  # the captured graph draws these right after the forward's
            half = self._recorded.half
            problem = first_difference(expected, gradients, half, what="gradient")
            if problem is not None:
                allowed = sensitivity(self._reverse, inputs, (), expected)
                problem = first_difference(expected, gradients, half, allowed, "gradient")
            if problem is not None:
                derivative.is_wrong(problem)
                return expected
            derivative.is_right()
            return gradients

    def _inputs(self) -> list[Tensor]:
        """Returns the inputs with their values from before the call."""
        written = self.before.written
        return [written.get(i, tensor) for i, tensor in enumerate(self.before.tensors)]

    def _is_overwritten(self) -> bool:
        pairs = zip(self.before.tensors, self._versions, strict=True)
        return any(
            _version(tensor) != version
            for i, (tensor, version) in enumerate(pairs)
            if i not in self.before.written
        )

    def _reverse(self, inputs: list[Tensor]) -> list[Any]:
        """Returns the unsimplified graph's gradients for the inputs and cotangents."""
        count = len(self.before.tensors)
        return [*self._recorded.pull_back(inputs[:count], inputs[count:], self.before.random)]


def _with_strides(cotangent: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Returns the cotangent with the strides that the backward was captured for."""
    if cotangent.stride() == stride:
        return cotangent
    return torch.empty_strided(
        cotangent.shape, stride, dtype=cotangent.dtype, device=cotangent.device
    ).copy_(cotangent)


def _any_batched(cotangents: list[Tensor]) -> bool:
    """Whether any cotangent is batched, by a layer or by is_grads_batched."""
    return must_inline(cotangents) or any(
        torch_c._dispatch_keys(cotangent).has(_BATCHED) for cotangent in cotangents
    )


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _no_backward_error(name: str) -> TransformError:
    return TransformError(
        f"torchlayers: compile: the simplified graph of {name} is wrong, and this call's gradients "
        "can't be computed with the unsimplified graph: an input has been written to since the "
        "call, or the cotangents are batched. Call the function again."
    )
