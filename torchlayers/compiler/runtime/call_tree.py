"""Runs functions that read values of tensors: a tree of parts, with a branch for each answer.

A call runs the first part, reads, and follows the branch of what it read, to the last part of that
path. If there is no such branch, the function is captured again, with the answers so far, and what
follows is added to the tree: parts of equal structure share what runs them, as the steps of a loop
do. No part but the last changes anything, apart from drawing random numbers, so a call can start
again at the root.
"""

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.optimizers import FirstStepError
from torchlayers.compiler.capture.python_mutations import undo
from torchlayers.compiler.capture.reads import RaisedAfterReadError, Read, answer_of
from torchlayers.compiler.capture.recording import (
    CapturedGraph,
    OutputSource,
    discard_graph_source,
)
from torchlayers.compiler.capture.side_effects import SideEffects
from torchlayers.compiler.capture.signature import Signature, TensorMetadata
from torchlayers.compiler.passes.split_at_reads import Carried, Part, SplitGraph, structure_of
from torchlayers.compiler.runtime.build import (
    Built,
    Eager,
    build_captured,
    capture_call,
    entry_of,
)
from torchlayers.compiler.runtime.call import Entry, is_like
from torchlayers.compiler.runtime.input_aliasing import share_memory
from torchlayers.compiler.runtime.parts import PartCache, PartRunner
from torchlayers.compiler.runtime.request import CompileRequest
from torchlayers.core import pytree, tracing_state
from torchlayers.core.device import RandomState
from torchlayers.core.errors import warn
from torchlayers.core.garbage_collection import gc_disabled

# The most parts that are compiled for one tree.
_MAX_PARTS = 64
# After so many captures in a row, without a call that needs none, a tree grows no more.
_MAX_IN_A_ROW = 16
# How often a call starts again at the root; rounding may have it read another value each time.
_ATTEMPTS = 3

# The place of a tensor: 0 for the inputs of the call, i + 1 for what part i returns; and the index.
Slot = tuple[int, int]


class _Split(NamedTuple):
    """A node of the tree: a part that ends with a read."""

    runner: PartRunner
    slots: list[Slot]  # its inputs
    part: Part
    branches: dict[Any, "_Split | _End"]


class _End:
    """The end of a path: its last part, or nothing if the function runs uncompiled from there."""

    def __init__(self, built: Built | None = None) -> None:
        self.built = built
        self.slots: Sequence[Slot] = ()  # what the last part takes after the captured tensors
        self.entry: Entry | None = None
        if built is not None and not isinstance(built.runs, Eager):
            self.entry = built.entry
        self.is_checked = False  # by the entry that runs the tree
        self._others: list[tuple[Tensor, TensorMetadata]] = []

    def check_captured(self, checked: set[int]) -> None:
        """Leaves out tensors, by id, that the entry that runs the tree checks."""
        if (entry := self.entry) is not None:
            pairs = zip(entry.captured, entry.captured_like, strict=True)
            self._others = [pair for pair in pairs if id(pair[0]) not in checked]

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether Python's state is as at the capture of this path."""
        if self.is_checked or self.entry is None:
            return True
        return all(is_like(*pair) for pair in self._others) and self.entry.holds(tensors)


class CallTree:
    """Runs the calls with one signature of a function that reads values of tensors.

    It is what the entry runs, and returns the function's result as if that were one tensor.
    """

    def __init__(
        self,
        request: CompileRequest,
        given: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self._request = request
        self._signature = given
        self._arguments = pytree.TensorLeaves((tuple(args), kwargs))
        self._count = len(self._arguments.tensors)
        self._arguments.tensors.clear()  # calls have others
        self._root: _Split | _End | None = None
        self._captured: list[Tensor] = []  # by the first path, and then by others
        self._first = 0  # how many the first path captured
        self._effects = SideEffects.none()  # of the first path
        self._written: set[int] = set()  # arguments, or captured tensors, that are written to
        self._draws: list[torch.Generator] | None = None
        self._parts = PartCache(request, given.modes.any_autocast)
        self._ends: dict[Any, Built] = {}  # by structure
        self._in_a_row = 0
        self._stopped = False
        self._lock = threading.RLock()

    def plant(
        self, captured_graph: CapturedGraph, why_as_it_is: str, start: float, call: Any
    ) -> Built:
        """Builds the entry for the first path."""
        given = self._signature
        entry = entry_of(given, captured_graph)
        if not self._request.keeps_writes:
            entry.guarded = entry.guards = None
        entry.outputs = [OutputSource("computed", 0)]
        entry.out_spec = pytree.flatten(0)[1]
        entry.is_recorded = True  # the parts decide
        entry.run = self
        self._effects = captured_graph.effects
        self._captured = [*captured_graph.captured]
        self._first = len(self._captured)
        tensors = [leaf for leaf in pytree.leaves(call) if isinstance(leaf, Tensor)]
        entry.grads_like = captured_graph.effects.grads_like([*tensors, *self._captured])
        end = self._add(captured_graph, why_as_it_is, start, call)
        end.is_checked = True
        built = end.built
        assert built is not None
        tree = Built(
            entry,
            self,
            captured_graph.graph,
            time.perf_counter() - start,
            built.by_capture,
            built.lost,
        )
        tree.splits = self.splits
        return tree

    # What an entry's runner has to tell.

    @property
    def how(self) -> str:
        hows = [part.runs.how for part in self._parts] + [
            end.runs.how for end in self._ends.values()
        ]
        return "; ".join(dict.fromkeys(hows))

    @property
    def seconds(self) -> float:
        parts = sum(part.runs.seconds for part in self._parts)
        return parts + sum(end.runs.seconds for end in self._ends.values())

    def wait(self, deadline: float | None) -> bool:
        waiting = [part.runs.wait for part in self._parts] + [
            end.runs.wait for end in self._ends.values()
        ]
        return all([wait(deadline) for wait in waiting])

    def splits(self) -> tuple[str, ...]:
        """Describes the parts and the reads between them."""
        count = len(self._parts) + len(self._ends)
        lines = [f"{count} parts, split where values are read:"]
        reads: dict[str, list[str]] = {}

        def visit(node: _Split | _End | None) -> None:
            if isinstance(node, _Split):
                known = reads.setdefault(node.part.read.line, [])
                for answer, branch in node.branches.items():
                    known.append(_describe(answer))
                    visit(branch)

        visit(self._root)
        for line, answers in reads.items():
            lines.append(f"  {line} read {', '.join(dict.fromkeys(answers))}")
        return tuple(lines)

    # Calls.

    def __call__(self, tensors: list[Tensor]) -> Sequence[Any]:
        """Runs a call on the tensors among the arguments and those that the first path captured."""
        return [self._run(tensors)]

    def _run(self, tensors: list[Tensor]) -> Any:
        for stepped in self._effects.stepped:
            stepped.read_rates()
        if self._effects.grads_read:
            tensors = self._effects.with_grads(tensors)
        if self._written and share_memory(tensors, self._written):
            return self._run_uncompiled(tensors)
        is_recording = torch.is_grad_enabled()
        added: _End | None = None
        for _ in range(_ATTEMPTS):
            random = None if self._draws is None else RandomState(self._draws)
            if is_recording:
                with torch.no_grad():
                    values, answers, end = self._follow(tensors)
            else:
                values, answers, end = self._follow(tensors)
            if added is not None and added is not end and added.built is not None:
                undo(added.built.by_capture)
                added.built.by_capture.clear()
            if end is not None and not end.fits(tensors):
                end = None
            if end is not None:
                self._in_a_row = 0 if added is None else self._in_a_row
                if end.entry is not None:
                    return self._finish(end.entry, end.slots, tensors, values)
            if random is not None:
                random.restore()
            if end is not None:
                break
            added = self._grow(tensors, answers)
            if added is None:
                break
        return self._run_uncompiled(tensors)

    def _follow(
        self, tensors: list[Tensor]
    ) -> tuple[list[Sequence[Tensor]], list[Any], _End | None]:
        """Runs parts, as far as the tree goes.

        Returns:
            the inputs, followed by what the parts returned; what was read; the end.
        """
        node: _Split | _End | None = self._root
        values: list[Sequence[Any]] = [[*tensors, *self._captured[self._first :]]]
        answers: list[Any] = []
        while type(node) is _Split:
            runner, slots, part, branches = node
            outputs = runner.run([values[i][j] for i, j in slots])
            answer = part.perform(outputs)
            values.append([*_tensors(answer), *outputs] if part.results else outputs)
            answers.append(answer)
            node = branches.get(answer if type(answer) is bool else answer_of(answer))
        return values, answers, node  # type: ignore[return-value]

    def _finish(
        self,
        entry: Entry,
        slots: Sequence[Slot],
        tensors: list[Tensor],
        values: list[Sequence[Tensor]],
    ) -> Any:
        inputs = [*tensors[: self._count], *entry.captured, *(values[i][j] for i, j in slots)]
        entry.calls += 1
        if entry.is_recorded or not torch.is_grad_enabled():
            computed = entry.run(inputs)
        else:
            with torch.no_grad():
                computed = entry.run(inputs)
        return entry.result(tensors, computed)

    @tracing_state.uncompiled
    def _run_uncompiled(self, tensors: Sequence[Tensor]) -> Any:
        args, kwargs = self._arguments.put_in(tensors)
        return self._request.func(*args, **kwargs)

    # Growth.

    @tracing_state.uncompiled
    @gc_disabled()
    @discard_graph_source()
    def _grow(self, tensors: Sequence[Tensor], answers: Sequence[Any]) -> _End | None:
        """Captures a call that is not in the tree; returns None if it has to run uncompiled."""
        with self._lock:
            start = time.perf_counter()
            if self._stopped:
                return None
            self._in_a_row += 1
            if self._in_a_row > _MAX_IN_A_ROW or len(self._parts) > _MAX_PARTS:
                self._stop(answers)
                return None
            args, kwargs = call = self._arguments.put_in(tensors)
            numbers = [None if [*_tensors(answer)] else answer for answer in answers]
            try:
                captured_graph, why = capture_call(
                    self._request, self._signature, args, kwargs, numbers
                )
            except RaisedAfterReadError as error:
                path = self._path([*map(answer_of, answers)])
                if len(error.reads) == len(path) and _are_same(path, error.reads):
                    self._plant(path, error.reads, _End())
                return None
            except FirstStepError:
                return None
            return self._add(captured_graph, why, start, call)

    def _stop(self, answers: Sequence[Any]) -> None:
        self._stopped = True
        line = self._path([*map(answer_of, answers)])[-1].part.read.line
        warn(
            f"torchlayers: compile: {self._request.name} reads values of tensors that keep leading "
            f"to new code, most recently here: {line} Calls that read something new run uncompiled "
            "from now on. Use torch.where or torch.cond instead of a branch, or leave that part "
            "outside.",
        )

    def _add(
        self, captured_graph: CapturedGraph, why_as_it_is: str, start: float, call: Any
    ) -> _End:
        """Adds the path of a capture to the tree, and returns its end."""
        graph = SplitGraph(captured_graph)
        last, carried = graph.last_part()
        built = self._build(last, why_as_it_is, start, call)
        built.entry.outputs = [self._among_tensors(output) for output in built.entry.outputs]
        end = _End(built)
        end.check_captured({*map(id, self._captured[: self._first])})
        if not _reads_alike(captured_graph.effects, self._effects):
            end.entry = None
        reads = captured_graph.reads
        path = self._path([read.answer for read in reads])
        if not _are_same(path, reads):
            return end  # the function did not run as before: it is not added
        places = self._places(captured_graph.captured)
        parts = self._parts_of(graph, path, carried)
        nodes = [*path]
        for place, part in enumerate(parts):
            if place < len(path) and part is path[place].part:
                continue
            runner = self._parts.runner(part.graph, captured_graph)
            slots = [_slot(source, places, parts) for source in part.inputs]
            branches = path[place].branches if place < len(path) else {}
            nodes[place : place + 1] = [_Split(runner, slots, part, branches)]
        end.slots = [_slot(source, places, parts) for source in carried]
        self._written |= {i if i < self._count else places[i][1] for i in graph.written}
        for node in nodes:
            if node.runner.draws is not None:
                self._draws = [*{*(self._draws or []), *node.runner.draws}]
        self._plant(nodes, reads, end)
        return end

    def _build(self, last: CapturedGraph, why_as_it_is: str, start: float, call: Any) -> Built:
        """Builds the last part of a path. Those of equal structure share what runs them."""
        args, kwargs = call
        key = None
        if not (any(last.effects) or last.constants or last.changes or why_as_it_is):
            key = (
                structure_of(last.graph),
                repr(last.outputs),
                last.gradients and repr(last.gradients),
            )
        if (like := self._ends.get(key)) is None or key is None:
            built = build_captured(
                self._request, self._signature, args, kwargs, last, why_as_it_is, start
            )
            self._ends[key or id(built)] = built
            return built
        entry = entry_of(self._signature, last)
        entry.is_recorded = like.entry.is_recorded
        entry.run = lambda tensors: like.entry.run(tensors)  # which may be replaced
        return Built(entry, like.runs, last.graph, 0.0, [])

    def _path(self, answers: Sequence[Any]) -> list[_Split]:
        """The nodes of the tree that these answers lead through."""
        path = []
        node = self._root
        for answer in answers:
            if not isinstance(node, _Split):
                break
            path.append(node)
            node = node.branches.get(answer)
        return path

    def _parts_of(
        self, graph: SplitGraph, path: Sequence[_Split], carried: Sequence[Carried]
    ) -> list[Part]:
        """The parts of a path: those of the tree, built again if they have to return more."""
        needed = [*carried]
        parts: list[Part] = []
        for place in reversed(range(graph.last)):
            part = path[place].part if place < len(path) else None
            if part is None or not {key for key in needed if key.part == place} <= {
                *part.exports,
                *part.results,
            }:
                before = [] if part is None else part.exports
                part = graph.part(place, [*before, *needed])
                needed += [source for source in part.inputs if isinstance(source, Carried)]
            parts.insert(0, part)
        return parts

    def _plant(self, nodes: Sequence[_Split], reads: Sequence[Read], end: _End) -> None:
        """Puts a path into the tree. Calls that are running go on with the nodes of before."""
        branch: _Split | _End = end
        for node, read in reversed([*zip(nodes, reads, strict=True)]):
            branch = node._replace(branches={**node.branches, read.answer: branch})
        self._root = branch

    def _places(self, captured: Sequence[Tensor]) -> list[Slot]:
        """Where calls find the inputs of a captured graph."""
        known = {id(tensor): i for i, tensor in enumerate(self._captured)}
        for tensor in captured:
            if id(tensor) not in known:
                known[id(tensor)] = len(self._captured)
                self._captured.append(tensor)
        arguments = [(0, i) for i in range(self._count)]
        return [*arguments, *((0, self._count + known[id(tensor)]) for tensor in captured)]

    def _among_tensors(self, output: OutputSource) -> OutputSource:
        """An output with the index of an argument among the tensors, not among all leaves."""
        if output.source != "argument":
            return output
        before = self._signature.leaves[: output.value]
        return output._replace(value=sum(isinstance(leaf, TensorMetadata) for leaf in before))


def _slot(source: int | Carried, places: Sequence[Slot], parts: Sequence[Part]) -> Slot:
    if isinstance(source, int):
        return places[source]
    part = parts[source.part]
    if source in part.results:
        return source.part + 1, part.results.index(source)
    operands = len(part.read.node.all_input_nodes)
    return source.part + 1, len(part.results) + operands + part.exports.index(source)


def _reads_alike(one: SideEffects, other: SideEffects) -> bool:
    """Whether two paths read the same gradients and learning rates before they run."""
    return one.grads_read == other.grads_read and len(one.stepped) == len(other.stepped)


def _are_same(path: Sequence[_Split], reads: Sequence[Read]) -> bool:
    """Whether a capture came to the reads of a path, and then perhaps to more."""

    def told(read: Read) -> Any:
        return read.node.target, read.line, [node.name for node in read.node.all_input_nodes]

    return all(told(node.part.read) == told(read) for node, read in zip(path, reads, strict=False))


def _tensors(answer: Any) -> Iterator[Tensor]:
    several = answer if isinstance(answer, tuple) else (answer,)
    return (each for each in several if isinstance(each, Tensor))


def _describe(answer: Any) -> str:
    """An answer as the report shows it: a number, or the shapes of tensors."""
    if isinstance(answer, bytes):
        return ", ".join(map(str, struct.unpack(f"{len(answer) // 8}d", answer)))
    return str(answer)


def build_entry(
    request: CompileRequest, given: Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> Built:
    """Captures request.func(*args, **kwargs), a call with this signature, and builds its entry."""
    start = time.perf_counter()
    with gc_disabled(), discard_graph_source():
        captured_graph, why = capture_call(request, given, args, kwargs)
        if not captured_graph.reads:
            return build_captured(request, given, args, kwargs, captured_graph, why, start)
        tree = CallTree(request, given, args, kwargs)
        return tree.plant(captured_graph, why, start, (args, kwargs))
