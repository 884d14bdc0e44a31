"""Runs functions that read values of tensors: part by part, along the tree of path_tree.py.

A call runs the first part, reads, and follows the branch of what it read, to the last part of that
path. If there is no such branch, the function is captured again, with the answers so far, and what
follows is added to the tree: parts of equal structure share what runs them, as the steps of a loop
do. No part but the last changes anything, apart from drawing random numbers, so a call can start
again at the root.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.capture.errors import NotWritableError, RaisedInCaptureError
from torchlayers.compiler.capture.optimizers import FirstStepError
from torchlayers.compiler.capture.recording import (
    CapturedGraph,
    OutputSource,
    discard_graph_source,
)
from torchlayers.compiler.capture.side_effects import SideEffects
from torchlayers.compiler.capture.signature import Signature, TensorMetadata
from torchlayers.compiler.capture.state.iterators import values_found_again, values_shared
from torchlayers.compiler.capture.state.outside_world import OutsideWorldError
from torchlayers.compiler.capture.state.state_holders import StatePlace
from torchlayers.compiler.capture.values.reads import RaisedAfterReadError, answer_of, warn_of_reads
from torchlayers.compiler.passes.graph_queries import generators_of
from torchlayers.compiler.passes.split_at_reads import SplitGraph, structure_of
from torchlayers.compiler.runtime.build import Built, build_captured, capture_call, entry_of
from torchlayers.compiler.runtime.call import Entry
from torchlayers.compiler.runtime.compare import random_state
from torchlayers.compiler.runtime.input_aliasing import share_memory
from torchlayers.compiler.runtime.parts import PartCache
from torchlayers.compiler.runtime.path_tree import (
    End,
    PathTree,
    Split,
    are_same,
    tensors_of,
)
from torchlayers.compiler.runtime.request import CompileRequest
from torchlayers.compiler.runtime.stages import as_python
from torchlayers.compiler.runtime.uncompiled_call import computes_only
from torchlayers.core import pytree, tracing_state
from torchlayers.core.device import RandomState
from torchlayers.core.garbage_collection import gc_disabled

# The most parts that are compiled for one tree.
_MAX_PARTS = 64
# After so many captures in a row, without a call that needs none, a tree grows no more.
_MAX_IN_A_ROW = 16
# How often a call starts again at the root; rounding may have it read another value each time.
_ATTEMPTS = 3


class _BuiltEnd(NamedTuple):
    built: Built
    graph: GraphModule


class _PartError(Exception):
    """A part raised its cause, before anything but generators has changed."""


class CallTree:
    """Runs the calls with one signature of a function that reads values of tensors.

    It is what the entry runs, and returns the function's result as if that were one tensor.
    """

    def __init__(
        self,
        request: CompileRequest,
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self._request = request
        self._signature = signature
        self._arguments = pytree.TensorLeaves((tuple(args), kwargs))
        self._count = len(self._arguments.tensors)
        self._arguments.tensors.clear()  # calls have others
        self._effects = SideEffects.none()  # of the first path
        self._parts = PartCache(request, signature.modes.any_autocast)
        self._ends: dict[Any, _BuiltEnd] = {}  # by structure
        self._traced: dict[Any, StatePlace] = {}  # places of numbers
        self._in_a_row = 0
        self._stopped = False
        self._draws: list[torch.Generator] | None = None  # of all paths; None without draws
        self._may_run_again = True  # after an error in a part
        self._tree: PathTree
        self._entry: Entry  # which runs this
        self._is_plain = False  # whether parts and ends just run, one after the other

    def plant(
        self, captured_graph: CapturedGraph, why_as_it_is: str, start: float, call: Any
    ) -> Built:
        """Builds the entry for the first path, that of this call."""
        captured = captured_graph.captured
        whole = captured_graph._replace(
            outputs=[OutputSource("computed", 0)], out_spec=pytree.flatten(0)[1]
        )
        if not self._request.keeps_writes:
            whole = whole._replace(guards=None)
        self._entry = entry = entry_of(self._signature, whole)
        entry.run = self
        tensors = [leaf for leaf in pytree.leaves(call) if isinstance(leaf, Tensor)]
        entry.grads_like = captured_graph.effects.grads_like([*tensors, *captured])
        self._effects = captured_graph.effects
        self._tree = PathTree(self._count, captured_graph, self._parts)
        end = self._add(captured_graph, SplitGraph(captured_graph), why_as_it_is, start, call)
        end.is_checked = True
        built = end.built
        assert built is not None
        tree = Built(
            entry,
            self,
            captured_graph.graph,
            time.perf_counter() - start,
            built.lost,
            captured_graph.effects.writes,
        )
        tree.splits, tree.stages = self.splits, self.stages
        return tree

    # What an entry's runner has to tell.

    @property
    def how(self) -> str:
        hows = [part.runs.how for part in self._parts] + [
            end.built.runs.how for end in self._ends.values()
        ]
        return "; ".join(dict.fromkeys(hows))

    @property
    def seconds(self) -> float:
        parts = sum(part.runs.seconds for part in self._parts)
        return parts + sum(end.built.runs.seconds for end in self._ends.values())

    def wait(self, deadline: float | None) -> bool:
        waiting = [part.runs.wait for part in self._parts] + [
            end.built.runs.wait for end in self._ends.values()
        ]
        return all([wait(deadline) for wait in waiting])

    def splits(self) -> tuple[str, ...]:
        """Describes the parts and the reads between them."""
        count = len(self._parts) + len(self._ends)
        lines = (f"  {line}" for line in self._tree.describe())
        return f"{count} parts, split where values are read:", *lines

    def stages(self) -> list[tuple[str, str]]:
        """The names of the parts, and their code."""
        parts = [
            (f"part {i}, handed to the backend", as_python(part.graph))
            for i, part in enumerate(self._parts)
        ]
        ends = [
            (f"end {i}, captured", as_python(end.graph))
            for i, end in enumerate(self._ends.values())
        ]
        return parts + ends

    # Calls.

    def __call__(self, tensors: list[Tensor]) -> Sequence[Any]:
        """Runs a call on the tensors among the arguments and those that the first path captured."""
        random = random_state(self._draws)
        try:
            if self._is_plain and (others := self._tree.captured_by_others()) is not None:
                values, _, end = _follow(self._tree.root, tensors + others)
                if end is not None and end.entry is not None and end.fits(tensors):
                    self._in_a_row = 0
                    return [self._finish(end, tensors, values)]
            with values_shared():
                return [self._run(tensors, random)]
        except _PartError as error:
            if not self._may_run_again:
                raise error.__cause__ or error from None
        if random is not None:
            random.restore()
        return [self._run_uncompiled(tensors)]  # NOTE [After an error]

    def _run(self, tensors: list[Tensor], random: RandomState | None) -> Any:
        """Runs a call for which this may be the first time, or which is differentiated.

        Args:
            random: the state of the generators before the call, if parts draw from them.
        """
        if self._effects.grads_read:
            tensors = self._effects.with_grads(tensors)
        added: End | None = None
        for _ in range(_ATTEMPTS):
            root = self._tree.root
            others = self._tree.captured_by_others()
            if others is None:
                break
            inputs = [*tensors, *others]
            if self._tree.written and share_memory(inputs, self._tree.written):
                break
            with torch.no_grad():
                values, answers, end = _follow(root, inputs)
            if end is not None and not end.fits(tensors):
                end = None
            if end is not None and end.entry is not None:
                self._in_a_row = 0 if added is None else self._in_a_row
                if end.built is not None and end.built.once:
                    self._tree.drop([*map(answer_of, answers)])
                with torch.set_grad_enabled(end.entry.is_recorded and self._signature.modes.grad):
                    return self._finish(end, tensors, values)
            if random is not None:
                random.restore()
            if end is not None:
                break
            added = self._grow(tensors, answers)
            if added is None:
                break
        return self._run_uncompiled(tensors)

    def _finish(self, end: End, tensors: list[Tensor], values: list[Sequence[Tensor]]) -> Any:
        """Runs the last part."""
        entry: Any = end.entry
        captured = entry.captured_now()
        assert captured is not None, "another thread has replaced a tensor"
        inputs = tensors[: self._count] + captured
        inputs += [values[i][j] for i, j in end.slots]
        entry.calls += 1
        try:
            computed = entry.run(inputs)
        except Exception as error:
            raise _PartError from error
        return computed[0] if end.is_single else entry.result(tensors, captured, computed)

    @tracing_state.uncompiled
    def _run_uncompiled(self, tensors: Sequence[Tensor]) -> Any:
        args, kwargs = self._arguments.put_in(tensors)
        with torch.set_grad_enabled(self._signature.modes.grad), values_found_again():
            return self._request.func(*args, **kwargs)

    # Growth.

    @tracing_state.uncompiled
    @gc_disabled()
    @discard_graph_source()
    def _grow(self, tensors: Sequence[Tensor], answers: Sequence[Any]) -> End | None:
        """Captures a call that is not in the tree; returns None if it has to run uncompiled."""
        with self._request.lock:
            start = time.perf_counter()
            if self._stopped:
                return None
            self._in_a_row += 1
            if self._in_a_row > _MAX_IN_A_ROW or len(self._parts) > _MAX_PARTS:
                line = self._tree.path([*map(answer_of, answers)])[-1].part.read.line
                self._stop("each value leads to new code", line)
                return None
            call = self._arguments.put_in(tensors)
            numbers = [None if [*tensors_of(answer)] else answer for answer in answers]
            keys = [*map(answer_of, answers)]
            try:
                captured_graph, why = self._capture(call, numbers)
                graph = SplitGraph(captured_graph)
                if not self._tree.holds(captured_graph, graph, keys):
                    captured_graph, why = self._capture(call, ())  # the answers are not of now
                    graph = SplitGraph(captured_graph)
            except RaisedAfterReadError as error:
                path = self._tree.path(keys)
                if error.why:
                    self._stop(error.why, error.line)
                elif len(error.reads) == len(path) and are_same(path, error.reads):
                    self._tree.plant(path, error.reads, End())
                return None
            except (FirstStepError, NotWritableError, OutsideWorldError, RaisedInCaptureError):
                return None
            return self._add(captured_graph, graph, why, start, call)

    def _capture(self, call: Any, answers: Sequence[Any]) -> tuple[CapturedGraph, str]:
        """Captures a call; the numbers that paths of the tree trace are traced in it."""
        args, kwargs = call
        with torch.set_grad_enabled(self._signature.modes.grad):
            return capture_call(
                self._request, self._signature, args, kwargs, answers, [*self._traced.values()]
            )

    def _stop(self, why: str, line: str) -> None:
        self._stopped = True
        warn_of_reads(self._request.name, why, line)

    def _add(
        self,
        captured_graph: CapturedGraph,
        graph: SplitGraph,
        why_as_it_is: str,
        start: float,
        call: Any,
    ) -> End:
        """Adds the path of a capture to the tree, and returns its end."""
        if (numbers := captured_graph.effects.writes.numbers) is not None:
            self._traced.update({place.identity: place for place in numbers.places})
        last, _ = graph.last_part()
        built = self._build(last, why_as_it_is, start, call)
        built.entry.outputs = [self._among_tensors(output) for output in built.entry.outputs]
        end = End(built)
        if not _reads_alike(captured_graph.effects, self._effects):
            end.entry = None
        self._tree.add(captured_graph, graph, end)
        self._may_run_again &= built.is_functional and computes_only(captured_graph.graph)
        if (generators := generators_of(captured_graph.graph)) is not None:
            self._draws = [*{*(self._draws or []), *generators}]
        self._entry.is_recorded |= end.entry is not None and end.entry.is_recorded
        may_change = self._effects.grads_read or self._tree.written
        draws = self._draws is not None
        self._is_plain = not (may_change or draws or self._entry.is_recorded or built.once)
        return end

    def _build(self, last: CapturedGraph, why_as_it_is: str, start: float, call: Any) -> Built:
        """Builds the last part of a path. Those of equal structure share what runs them."""
        args, kwargs = call
        key: Any = None
        has_effects = any(last.effects) or last.carried or not self._request.keeps_writes
        if not (has_effects or last.constants or why_as_it_is):
            captured = (*map(id, last.captured),)
            key = structure_of(last.graph), repr(last.outputs), repr(last.gradients), captured
        if key is None or (like := self._ends.get(key)) is None:
            built = build_captured(
                self._request, self._signature, args, kwargs, last, why_as_it_is, start, is_end=True
            )
            self._ends[key or id(built)] = _BuiltEnd(built, last.graph)
            return built
        entry = entry_of(self._signature, last)
        shared = like.built.entry
        entry.is_recorded = shared.is_recorded
        entry.run = lambda tensors: shared.run(tensors)  # which may be replaced
        return like.built.shared_by(entry)

    def _among_tensors(self, output: OutputSource) -> OutputSource:
        """An output with the index of an argument among the tensors, not among all leaves."""
        if output.source != "argument":
            return output
        before = self._signature.leaves[: output.value]
        return output._replace(value=sum(isinstance(leaf, TensorMetadata) for leaf in before))


def _follow(
    node: Split | End | None, inputs: list[Tensor]
) -> tuple[list[Sequence[Tensor]], list[Any], End | None]:
    """Runs parts from this node on, as far as the tree goes.

    Returns:
        the inputs, followed by what the parts returned; what was read; the end.
    """
    values: list[Sequence[Any]] = [inputs]
    answers: list[Any] = []
    while type(node) is Split:
        runner, slots, part, branches, _ = node
        try:
            outputs = runner.run([values[i][j] for i, j in slots])
            answer = part.perform(outputs)
        except Exception as error:
            raise _PartError from error
        values.append([*tensors_of(answer), *outputs] if part.results else outputs)
        answers.append(answer)
        node = branches.get(answer if type(answer) is bool else answer_of(answer))
    return values, answers, node  # type: ignore[return-value]


def _reads_alike(one: SideEffects, other: SideEffects) -> bool:
    """Whether two paths read the same gradients before they run."""
    return one.grads_read == other.grads_read


def build_entry(
    request: CompileRequest, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> Built:
    """Captures request.func(*args, **kwargs), a call with this signature, and builds its entry."""
    start = time.perf_counter()
    with gc_disabled(), discard_graph_source():
        captured_graph, why = capture_call(request, signature, args, kwargs)
        if not captured_graph.reads:
            return build_captured(request, signature, args, kwargs, captured_graph, why, start)
        tree = CallTree(request, signature, args, kwargs)
        return tree.plant(captured_graph, why, start, (args, kwargs))
