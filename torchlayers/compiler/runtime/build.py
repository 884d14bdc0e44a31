"""Builds the entry for a signature: captures, simplifies, splits if needed, passes to a backend."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.capture.guarded_state import nothing_collected
from torchlayers.compiler.capture.python_mutations import (
    Change,
    made_again,
    undo,
    undone_after_errors,
)
from torchlayers.compiler.capture.record import NoReverseError, record
from torchlayers.compiler.capture.recording import Recording, source_forgotten
from torchlayers.compiler.capture.side_effects import Effects
from torchlayers.compiler.capture.signature import Signature, described
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.functionalize import writes_parts_of_complex
from torchlayers.compiler.passes.graph_queries import (
    communicates,
    final_copies,
    is_functional,
    operators,
)
from torchlayers.compiler.passes.seal_unstrided import any_without_strides
from torchlayers.compiler.runtime.autograd import Derivative
from torchlayers.compiler.runtime.backends import Run, Runner, plainly
from torchlayers.compiler.runtime.call import Entry
from torchlayers.compiler.runtime.dynamic_shapes import Family, Numbers, concrete
from torchlayers.compiler.runtime.input_aliasing import UnlessShared
from torchlayers.compiler.runtime.report import SignatureReport
from torchlayers.compiler.runtime.request import Asked
from torchlayers.compiler.runtime.verify import Held
from torchlayers.core import pytree
from torchlayers.fx.program import replay


class Runs(Protocol):
    """Runs an entry, for the report."""

    @property
    def how(self) -> str: ...
    @property
    def seconds(self) -> float: ...


class AsItIs(NamedTuple):
    """Runs the original function, uncompiled."""

    why: str
    advice: str
    seconds: float = 0.0

    @property
    def how(self) -> str:
        return f"as it is ({self.why})"


class Made:
    """An entry, with the data for its report."""

    def __init__(
        self,
        entry: Entry,
        runs: Runs,
        graph: GraphModule,
        seconds: float,
        lost: Sequence[Change] = (),
    ) -> None:
        self.entry = entry
        self.lost = lost  # changes to Python state that the captured graph can't repeat
        self.why = ""
        self.runs = runs
        self._operators = sum(1 for _ in operators(graph))
        self._seconds = seconds

    def report(self) -> SignatureReport:
        return SignatureReport(
            described(self.entry.signature),
            self.runs.how,
            self._seconds + self.runs.seconds,
            self.entry.calls,
            self._operators,
            self.why,
            self.entry.guarded.names() if self.entry.guarded is not None else (),
        )


@nothing_collected()
@source_forgotten()
def make(asked: Asked, given: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> Made:
    """Captures asked.func(*args, **kwargs), a call with this signature, and builds its entry."""
    start = time.perf_counter()
    why_as_it_is = ""
    guarded = asked.settings.guards or not asked.keeps_writes
    try:
        recorded = record(asked.func, args, kwargs, gradients=given.modes.grad, guarded=guarded)
    except NoReverseError as error:  # only the function itself can build the autograd graph
        why_as_it_is = f"its reverse pass can't be captured: {error}"
        recorded = record(asked.func, args, kwargs, guarded=guarded)
    if not asked.keeps_writes:  # the forward has also made its changes to Python state
        undo(recorded.changes)
        recorded = recorded._replace(guards=None, changes=[])
    with undone_after_errors(recorded.changes):
        lost: Sequence[Change] = ()
        if recorded.guards is not None and not made_again(recorded.changes, recorded.guards):
            lost = recorded.changes
        else:
            recorded.effects.changes.extend(recorded.changes)
        asked = _checked_if_alone(_replayed_if_inductor_cannot(asked, recorded), recorded)
        graph = simplify(recorded.graph)
        if not asked.keeps_writes:
            _leave_out_writes(graph)
        entry = _entry_of(given, recorded)
        leaves = [leaf for leaf in pytree.leaves((tuple(args), kwargs)) if isinstance(leaf, Tensor)]
        entry.grads_like = recorded.effects.grads_like([*leaves, *recorded.captured])
        runs: Runs
        if recorded.gradients is None and not why_as_it_is:
            runs = _plain(asked, entry, recorded, graph)
        else:
            computed = _Computed(asked.func, args, kwargs, recorded)
            entry.is_recorded = True
            runs = _differentiable(asked, entry, given, recorded, graph, computed, why_as_it_is)
        return Made(entry, runs, graph, time.perf_counter() - start, lost)


def _differentiable(
    asked: Asked,
    entry: Entry,
    given: Signature,
    recorded: Recording,
    graph: GraphModule,
    computed: "_Computed",
    why_as_it_is: str,
) -> AsItIs | Derivative:
    """Returns what runs with autograd on: the graph with its reverse pass, or the function."""
    advice = (
        "Differentiate inside the compiled function (torchlayers.grad, torch.autograd.grad or "
        "backward()), or call it under torch.no_grad()."
    )
    adopt: Callable[[Run], None] = functools.partial(setattr, entry, "run")
    if not why_as_it_is and not is_functional(graph):
        why_as_it_is = "an operator writes to its inputs"
        advice = "Write out of place, or call the function under torch.no_grad()."
    if why_as_it_is:
        undo(recorded.changes)  # running the function will make them
        adopt(computed)
        return AsItIs(why_as_it_is, advice)
    if written := {*final_copies(graph).values()}:
        adopt = _unless_shared(entry, written, lambda: computed)
    adopt = _with_effects(adopt, _effects(asked, recorded))
    return Derivative(recorded, graph, given.modes, asked, computed, computed.arguments, adopt)


@nothing_collected()
@source_forgotten()
def make_for_sizes(
    asked: Asked, family: Family, given: Signature, numbers: Numbers, alone: Recording | None
) -> Made:
    """Builds the entry for a call that the family covers.

    Args:
        alone: a capture for these sizes only, if the family's results are to be compared with it.
    """
    start = time.perf_counter()
    recorded = alone or family.recording_for(numbers)
    asked = _replayed_if_inductor_cannot(asked, family.recorded)
    entry = _entry_of(given, recorded)
    graph = concrete(family.graph, numbers)
    runs = _plain(asked, entry, recorded, graph, family.compiler_for(given))
    return Made(entry, runs, graph, time.perf_counter() - start)


def _entry_of(given: Signature, recorded: Recording) -> Entry:
    return Entry(
        given,
        recorded.captured,
        recorded.outputs,
        recorded.out_spec,
        recorded.modules,
        recorded.stepped,
        recorded.hooked,
        recorded.guards,
    )


def _plain(
    asked: Asked,
    entry: Entry,
    recorded: Recording,
    graph: GraphModule,
    compiler: inductor.Compiler | None = None,
) -> Runs:
    """Sets what the entry runs if nothing is differentiated, and returns it."""
    around = plainly if entry.signature.modes.any_autocast else None
    adopt: Callable[[Run], None] = functools.partial(setattr, entry, "run")
    effects = _effects(asked, recorded)
    if written := {*final_copies(graph).values()}:

        def in_order() -> Run:
            run: Run = replay(recorded.graph)
            run = run if around is None else around(run)
            return effects.of_run(run)

        adopt = _unless_shared(entry, written, in_order)
    adopt = _with_effects(adopt, effects)
    if not (asked.settings.check and is_functional(graph)):
        return Runner(graph, asked.settings, asked.name, adopt, around, compiler)
    held = Held(recorded.graph, asked.name, adopt, around, asked.keeps_writes)
    held.runner = Runner(graph, asked.settings, asked.name, held.adopt, around, compiler)
    return held


def _effects(asked: Asked, recorded: Recording) -> Effects:
    return recorded.effects if asked.keeps_writes else Effects.none()


def _with_effects(adopt: Callable[[Run], None], effects: Effects) -> Callable[[Run], None]:
    return lambda run: adopt(effects.of_run(run))


def _unless_shared(
    entry: Entry, written: set[int], in_order: Callable[[], Run]
) -> Callable[[Run], None]:
    """Makes the entry run the adopted callable, or in_order's where a written input is aliased.

    Returns the function that adopts a callable.
    """
    entry.run = watched = UnlessShared(sorted(written), in_order)
    return watched.adopt


def _checked_if_alone(asked: Asked, recorded: Recording) -> Asked:
    """Turns checks off for graphs with collectives: no other rank would join when they rerun."""
    if not communicates(recorded.graph):
        return asked
    return asked._replace(settings=asked.settings._replace(check=False))


def _replayed_if_inductor_cannot(asked: Asked, recorded: Recording) -> Asked:
    """Requests replay where Inductor (torch 2.13) fails: it rejects sparse tensors, and was wrong
    in random programs that write to the real or imaginary parts of complex tensors.
    """
    if any_without_strides(recorded.graph.graph):
        why = "it computes with sparse tensors, which inductor does not support"
    elif writes_parts_of_complex(recorded.graph):
        why = "it writes to parts of complex numbers, where inductor can be wrong"
    else:
        return asked
    return asked._replace(settings=asked.settings._replace(replayed=why))


def _leave_out_writes(graph: GraphModule) -> None:
    for node in final_copies(graph):
        source: Any = node.args[1]
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
    graph.recompile()


class _Computed:
    """Calls the original function with the tensors that a captured graph takes.

    It returns those that the graph computes.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        recorded: Recording,
    ) -> None:
        self._given = pytree.TensorLeaves((tuple(args), kwargs))
        self.arguments = len(self._given.tensors)
        self._given.tensors.clear()  # it is called with others
        self._func = func
        self._outputs = recorded.outputs
        self._count = recorded.computed

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        args, kwargs = self._given.put_in(tensors)  # captured ones follow
        results = pytree.leaves(self._func(*args, **kwargs))
        computed: list[Any] = [None] * self._count
        for result, (source, value) in zip(results, self._outputs, strict=True):
            if source == "computed":
                computed[value] = result
        return computed
