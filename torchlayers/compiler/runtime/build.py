"""Builds the entry for a signature: captures, simplifies, splits if needed, passes to a backend."""

import copy
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.compiler.capture.errors import RaisedInCaptureError, is_refusal
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.reverse_pass import NoBackwardError
from torchlayers.compiler.capture.side_effects import SideEffects
from torchlayers.compiler.capture.signature import Signature, describe_leaves
from torchlayers.compiler.capture.state.outside_world import OutsideWorldError
from torchlayers.compiler.capture.state.python_writes import AnyWrite, PythonWrites
from torchlayers.compiler.capture.state.state_holders import StatePlace
from torchlayers.compiler.passes.entries.captured_constants import simplify_captured
from torchlayers.compiler.passes.functionalize import first_write_to_part_of_complex
from torchlayers.compiler.passes.graph_queries import (
    communicates,
    final_copies,
    first_with_effect_inside,
    has_effects,
    is_functional,
    operators,
)
from torchlayers.compiler.passes.seal_unstrided import first_without_strides
from torchlayers.compiler.runtime.autograd import DifferentiableGraph
from torchlayers.compiler.runtime.backends import GraphRunner, Run, below_autograd
from torchlayers.compiler.runtime.call import Entry
from torchlayers.compiler.runtime.input_aliasing import AliasGuard
from torchlayers.compiler.runtime.report import SignatureReport
from torchlayers.compiler.runtime.request import CompileRequest
from torchlayers.compiler.runtime.uncompiled_call import UncompiledCall, around_errors
from torchlayers.compiler.runtime.verify import VerifiedRun
from torchlayers.core import pytree
from torchlayers.fx.program import replay


class EntryRunner(Protocol):
    """Runs an entry, for the report."""

    @property
    def how(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    def wait(self, deadline: float | None) -> bool:
        """Waits for compilations in flight until the deadline; returns whether none is left."""
        ...


class Eager(NamedTuple):
    """Runs the original function, uncompiled."""

    why: str
    advice: str
    seconds: float = 0.0

    @property
    def how(self) -> str:
        return f"as it is ({self.why})"

    def wait(self, deadline: float | None) -> bool:
        return True


class Built:
    """An entry, with the data for its report."""

    def __init__(
        self,
        entry: Entry,
        runs: EntryRunner,
        graph: GraphModule,
        seconds: float,
        lost: Sequence[AnyWrite] = (),
        writes: PythonWrites | None = None,
    ) -> None:
        self.entry = entry
        entry.runner = runs
        self.lost = lost  # writes to Python after which the next call needs another entry
        self.numbers = writes.numbers if writes is not None else None
        self.once = writes is not None and writes.once  # whether it is good for one call alone
        self._writes = writes.names if writes is not None else ()
        self.why = ""
        self.runs = runs
        self.splits: Callable[[], tuple[str, ...]] = tuple  # of a tree of parts, for the report
        # The graphs of a tree of parts, or with symbolic sizes; others are captured again.
        self.stages: Callable[[], list[tuple[str, str]]] | None = None
        self.is_functional = is_functional(graph)
        self.operators = sum(1 for _ in operators(graph))
        self._seconds = seconds

    def shared_by(self, entry: Entry) -> "Built":
        """Returns this for another entry that runs the same graph."""
        shared = copy.copy(self)
        shared.entry = entry
        entry.runner = self.runs
        return shared

    def reads_and_writes(self) -> list[tuple[str, str]]:
        """The reads that split it and the places that calls write to, as a stage to show."""
        lines = [*self.splits(), *(f"each call writes {name}" for name in self._writes)]
        return [("reads and writes", "\n".join(lines))] if lines else []

    def report(self) -> SignatureReport:
        return SignatureReport(
            describe_leaves(self.entry.signature),
            self.runs.how,
            self._seconds + self.runs.seconds,
            self.entry.calls,
            self.operators,
            self.why,
            self.entry.guarded.names() if self.entry.guarded is not None else (),
            self.splits(),
            self._writes,
        )


def capture_call(
    request: CompileRequest,
    call_signature: Signature,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    answers: Sequence[Any] = (),
    traced: Sequence[StatePlace] = (),
) -> tuple[CapturedGraph, str]:
    """Captures request.func(*args, **kwargs); also returns why it has to run uncompiled, if so.

    Args:
        call_signature: the signature of the call.
        answers: what its first reads of tensors return.
        traced: places of numbers that are traced in any case.
    Raises:
        RaisedInCaptureError: the function raises an exception. The state is that before the call.
    """
    guarded = request.settings.guards or not request.keeps_writes
    capture = functools.partial(
        record,
        request.func,
        args,
        kwargs,
        guarded=guarded,
        replaced=request.replaced,
        reads=None if request.settings.fullgraph else answers,
        traced=traced,
    )
    try:
        try:
            return capture(gradients=call_signature.modes.grad), ""
        except NoBackwardError as error:  # only the function itself can build the autograd graph
            return capture(), f"its reverse pass can't be captured: {error}"
    except (OutsideWorldError, RaisedInCaptureError):
        raise
    except Exception as error:
        if is_refusal(error):
            raise
        raise RaisedInCaptureError from error


def build_captured(
    request: CompileRequest,
    call_signature: Signature,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    captured_graph: CapturedGraph,
    why_as_it_is: str,
    start: float,
    is_end: bool = False,
) -> Built:
    """Builds the entry for a call with this signature from what was captured.

    Args:
        why_as_it_is: why it has to run uncompiled, if so.
        start: when the capture started.
        is_end: whether it is the last part of a function, which handles errors for all parts.
    """
    request.replaced.update(write.place for write in captured_graph.effects.writes.writes)
    if not request.keeps_writes:
        captured_graph = captured_graph._replace(guards=None)
    lost, writes = captured_graph.lost, captured_graph.effects.writes
    request = checked_if_alone(replayed_if_inductor_cannot(request, captured_graph), captured_graph)
    captured_graph, graph = simplify_captured(captured_graph)
    if not request.keeps_writes:
        _leave_out_writes(graph)
    entry = entry_of(call_signature, captured_graph)
    leaves = [leaf for leaf in pytree.leaves((tuple(args), kwargs)) if isinstance(leaf, Tensor)]
    entry.grads_like = captured_graph.effects.grads_like([*leaves, *captured_graph.captured])
    runs: EntryRunner
    computed = UncompiledCall(request.func, args, kwargs, captured_graph)
    after_error = None if is_end else computed
    if captured_graph.gradients is None and not why_as_it_is:
        runs = _plain(request, entry, captured_graph, graph, after_error)
    else:
        entry.is_recorded = True
        runs = _differentiable(
            request,
            entry,
            call_signature,
            captured_graph,
            graph,
            computed,
            why_as_it_is,
            after_error,
        )
    for state in captured_graph.carried:
        if state.position is not None:  # nothing keeps the first one alive
            captured_graph.captured[state.position] = None  # type: ignore[call-overload]
    return Built(entry, runs, graph, time.perf_counter() - start, lost, writes)


def _differentiable(
    request: CompileRequest,
    entry: Entry,
    call_signature: Signature,
    captured_graph: CapturedGraph,
    graph: GraphModule,
    computed: UncompiledCall,
    why_as_it_is: str,
    after_error: UncompiledCall | None,
) -> Eager | DifferentiableGraph:
    """Returns what runs with autograd on: the graph with its reverse pass, or the function."""
    advice = (
        "Differentiate inside the compiled function (torchlayers.grad, torch.autograd.grad or "
        "backward()), or call it under torch.no_grad()."
    )
    adopt: Callable[[Run], None] = functools.partial(setattr, entry, "run")
    if not why_as_it_is and (why_as_it_is := why_not_differentiable(graph)) == _WRITES:
        advice = "Write out of place, or call the function under torch.no_grad()."
    if why_as_it_is:
        adopt(computed)
        return Eager(why_as_it_is, advice)
    if written := {*final_copies(graph).values()}:
        adopt = _unless_shared(entry, written, lambda: computed)
    adopt = _with_effects(request, entry, captured_graph, graph, adopt, after_error)
    return DifferentiableGraph(
        captured_graph, graph, call_signature.modes, request, computed, computed.arguments, adopt
    )


def entry_of(call_signature: Signature, captured_graph: CapturedGraph) -> Entry:
    return Entry(
        call_signature,
        captured_graph.captured,
        captured_graph.outputs,
        captured_graph.out_spec,
        captured_graph.hooked,
        captured_graph.guards,
        captured_graph.carried,
    )


def _plain(
    request: CompileRequest,
    entry: Entry,
    captured_graph: CapturedGraph,
    graph: GraphModule,
    after_error: UncompiledCall | None,
) -> EntryRunner:
    """Sets what the entry runs if nothing is differentiated, and returns it."""
    around = below_autograd if entry.signature.modes.any_autocast else None
    adopt: Callable[[Run], None] = functools.partial(setattr, entry, "run")
    if written := {*final_copies(graph).values()}:

        def in_order() -> Run:
            run: Run = replay(captured_graph.graph)
            run = run if around is None else around(run)
            return _effects(request, captured_graph).of_run(run)

        adopt = _unless_shared(entry, written, in_order)
    adopt = _with_effects(request, entry, captured_graph, graph, adopt, after_error)
    if not (request.settings.check and is_functional(graph)):
        return GraphRunner(graph, request.settings, request.name, adopt, around)
    verified = VerifiedRun(captured_graph.graph, request.name, adopt, around, request.keeps_writes)
    verified.runner = GraphRunner(graph, request.settings, request.name, verified.adopt, around)
    return verified


def _effects(request: CompileRequest, captured_graph: CapturedGraph) -> SideEffects:
    return captured_graph.effects if request.keeps_writes else SideEffects.none()


def _with_effects(
    request: CompileRequest,
    entry: Entry,
    captured_graph: CapturedGraph,
    graph: GraphModule,
    adopt: Callable[[Run], None],
    after_error: UncompiledCall | None,
) -> Callable[[Run], None]:
    """Wraps what is adopted so that it has the function's side effects, after an error, too."""
    effects, grad = _effects(request, captured_graph), entry.signature.modes.grad
    if after_error is None or not request.keeps_writes:
        return lambda run: adopt(effects.of_run(run))
    around = around_errors(after_error, captured_graph, graph, grad)
    return lambda run: adopt(around(effects.of_run(run)))


def _unless_shared(
    entry: Entry, written: set[int], in_order: Callable[[], Run]
) -> Callable[[Run], None]:
    """Makes the entry run the adopted callable, or in_order's where a written input is aliased.

    Returns the function that adopts a callable.
    """
    entry.run = watched = AliasGuard(sorted(written), in_order)
    return watched.adopt


def checked_if_alone(request: CompileRequest, captured_graph: CapturedGraph) -> CompileRequest:
    """Turns checks off for graphs with collectives, since no other rank would join when they rerun,
    and for graphs with other effects, which would happen twice."""
    if not (communicates(captured_graph.graph) or has_effects(captured_graph.graph)):
        return request
    return request._replace(settings=request.settings._replace(check=False))


def replayed_if_inductor_cannot(
    request: CompileRequest, captured_graph: CapturedGraph
) -> CompileRequest:
    obstacle = inductor_obstacle(captured_graph)
    if obstacle is None:
        return request
    return request._replace(settings=request.settings._replace(replayed=obstacle.why))


class Obstacle(NamedTuple):
    """Why Inductor can't compile a graph, and the first node that it can't."""

    why: str
    node: Node


def inductor_obstacle(captured_graph: CapturedGraph) -> Obstacle | None:
    """Why the graph is replayed: Inductor (torch 2.13) rejects sparse tensors, was wrong in random
    programs that write to the real or imaginary parts of complex tensors, and may reorder operators
    without results in branches and loops. None if it is not.
    """
    graph = captured_graph.graph
    if (node := first_without_strides(graph.graph)) is not None:
        return Obstacle("it computes with sparse tensors, which inductor does not support", node)
    if (node := first_write_to_part_of_complex(graph)) is not None:
        return Obstacle("it writes to parts of complex numbers, where inductor can be wrong", node)
    if (node := first_with_effect_inside(graph)) is not None:
        return Obstacle("torchlayers.debug or io_callback runs in a branch or a loop of it", node)
    return None


_WRITES = "an operator writes to its inputs"


def why_not_differentiable(graph: GraphModule) -> str:
    """Why the function runs uncompiled where autograd records it; empty if it does not."""
    if has_effects(graph):
        return "torchlayers.debug or io_callback runs in it"
    return "" if is_functional(graph) else _WRITES


def _leave_out_writes(graph: GraphModule) -> None:
    for node in final_copies(graph):
        source: Any = node.args[1]
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
    graph.recompile()
