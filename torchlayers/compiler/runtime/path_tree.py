"""The tree of the parts of a function that reads values of tensors, with a branch for each answer.

Its nodes are replaced, not changed: a call that is running goes on with those of before.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import is_plain
from torchlayers.compiler.capture.state.carried_tensors import (
    CarriedNumber,
    CarriedTensor,
    tensors_now,
)
from torchlayers.compiler.capture.values.reads import Read
from torchlayers.compiler.passes.split_at_reads import Exported, Part, SplitGraph
from torchlayers.compiler.runtime.build import Built, Eager
from torchlayers.compiler.runtime.call import Entry
from torchlayers.compiler.runtime.parts import PartCache, PartRunner

# The most elements of a constant that is compared by its values.
_MANY = 1_000
# The place of a tensor: 0 for the inputs of the call, i + 1 for what part i returns; and the index.
Slot = tuple[int, int]


class Split(NamedTuple):
    """A node of the tree: a part that ends with a read.

    Attributes:
        slots: its inputs.
        code: of the part as it was captured: what Python's state had for it.
    """

    runner: PartRunner
    slots: list[Slot]
    part: Part
    branches: dict[Any, "Split | End"]
    code: str


class End:
    """The end of a path: its last part, or nothing if the function runs uncompiled there."""

    def __init__(self, built: Built | None = None) -> None:
        self.built = built
        self.slots: Sequence[Slot] = ()  # what the last part takes after the captured tensors
        self.entry: Entry | None = None
        if built is not None and not isinstance(built.runs, Eager):
            self.entry = built.entry
        self.is_checked = False  # by the entry that runs the tree
        # Whether its only result is a tensor that the last part computes.
        self.is_single = built is not None and built.entry.returns_first()

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether Python's state is as at the capture of this path."""
        return self.is_checked or self.entry is None or self.entry.fits(tensors)


class PathTree:
    """The tree, and where the tensors of a call are.

    Args:
        count: the number of tensors among the arguments.
        first: the first path.

    Attributes:
        root: None until there is a path.
        written: indices of inputs, arguments and captured tensors, that a path writes to.
    """

    def __init__(self, count: int, first: CapturedGraph, parts: PartCache) -> None:
        self.root: Split | End | None = None
        # Where the inputs of a call have the captured tensors of all paths: those of the first path
        # are in its order, in which a number may stand several times; others follow.
        self._first = len(first.captured)
        self._known = {key: index for index, (key, _, _) in enumerate(_captured(first))}
        self._others: list[Tensor] = []
        self._carried: list[CarriedTensor | CarriedNumber] = []  # of the others: read at each call
        self.written: set[int] = set()
        self._count = count
        self._parts = parts

    def path(self, answers: Sequence[Any]) -> list[Split]:
        """The nodes that these answers lead through."""
        path = []
        node = self.root
        for answer in answers:
            if not isinstance(node, Split):
                break
            path.append(node)
            node = node.branches.get(answer)
        return path

    def add(self, captured_graph: CapturedGraph, graph: SplitGraph, end: End) -> None:
        """Adds a path: its parts that are not in the tree, and its end.

        Args:
            graph: the parts of the captured graph.
        """
        reads = captured_graph.reads
        places = self._places(captured_graph)
        codes = self._codes(captured_graph, graph, places)
        path = self._same(self.path([read.answer for read in reads]), codes)
        _, exported = graph.last_part()
        parts = _parts_of(graph, path, exported)
        nodes = [*path]
        for place, part in enumerate(parts):
            if place < len(path) and part is path[place].part:
                continue
            runner = self._parts.runner(part.graph, captured_graph)
            slots = [_slot(source, places, parts) for source in part.inputs]
            branches = path[place].branches if place < len(path) else {}
            nodes[place : place + 1] = [Split(runner, slots, part, branches, codes[place])]
        end.slots = [_slot(source, places, parts) for source in exported]
        self.written |= {places[i][1] for i in graph.written}
        self.plant(nodes, reads, end)

    def holds(
        self, captured_graph: CapturedGraph, graph: SplitGraph, answers: Sequence[Any]
    ) -> bool:
        """Whether the parts that these answers came from are those of a capture.

        Others have read another state of Python, which is checked only at the end of their paths.
        """
        path = self.path(answers)
        codes = self._codes(captured_graph, graph, self._places(captured_graph))
        return len(self._same(path, codes)) == len(path)

    def _same(self, path: list[Split], codes: Sequence[str]) -> list[Split]:
        """The first nodes of a path, as far as they have this code."""
        pairs = itertools.takewhile(
            lambda pair: pair[0].code == pair[1], zip(path, codes, strict=False)
        )
        return [node for node, _ in pairs]

    def _codes(
        self, captured_graph: CapturedGraph, graph: SplitGraph, places: Sequence[Slot]
    ) -> list[str]:
        sources: list[Any] = [*places]
        count = captured_graph.constants
        for index, tensor in enumerate(captured_graph.captured[-count:] if count else ()):
            sources[len(places) - count + index] = f"{tensor.dtype} {_values_of(tensor)}"
        return [graph.code(place, sources) for place in range(graph.last)]

    def drop(self, answers: Sequence[Any]) -> None:
        """Drops the end of the path that these answers lead to."""
        branch: Split | None = None
        nodes = self.path(answers)
        for node, answer in reversed([*zip(nodes, answers, strict=True)]):
            branches = {key: value for key, value in node.branches.items() if key != answer}
            if branch is not None:
                branches[answer] = branch
            branch = node._replace(branches=branches)
        self.root = branch

    def plant(self, nodes: Sequence[Split], reads: Sequence[Read], end: End) -> None:
        """Puts these nodes, which end with these reads, and the end into the tree."""
        branch: Split | End = end
        for node, read in reversed([*zip(nodes, reads, strict=True)]):
            branch = node._replace(branches={**node.branches, read.answer: branch})
        self.root = branch

    def captured_by_others(self) -> list[Tensor] | None:
        """The tensors that only others than the first path captured; None if one does not fit."""
        return tensors_now(self._others, self._carried) if self._carried else self._others

    def _places(self, captured_graph: CapturedGraph) -> list[Slot]:
        """Where calls find the inputs of a captured graph."""
        slots = [(0, i) for i in range(self._count)]
        for key, tensor, read in _captured(captured_graph):
            if key not in self._known:
                self._known[key] = self._first + len(self._others)
                if read is not None:
                    self._carried.append(read._replace(position=len(self._others)))
                self._others.append(tensor)
            slots.append((0, self._count + self._known[key]))
        return slots

    def describe(self) -> list[str]:
        """The lines that read, each with the answers that have branches."""
        answers: dict[str, dict[str, None]] = {}

        def visit(node: Split | End | None) -> None:
            if isinstance(node, Split):
                known = answers.setdefault(node.part.read.line, {})
                for answer, branch in node.branches.items():
                    known[_describe(answer)] = None
                    visit(branch)

        visit(self.root)
        return [f"{line} read {', '.join(known)}" for line, known in answers.items()]


def _captured(
    captured_graph: CapturedGraph,
) -> Iterator[tuple[Any, Tensor, CarriedTensor | CarriedNumber | None]]:
    """Yields the captured tensors: what tells each from others, and how it is read, if it is."""
    carried = {state.position: state for state in captured_graph.carried}
    for index, tensor in enumerate(captured_graph.captured):
        read = carried.get(index)
        yield id(tensor) if read is None else read.key(), tensor, read


def _parts_of(graph: SplitGraph, path: Sequence[Split], exported: Sequence[Exported]) -> list[Part]:
    """The parts of a path: those of the tree, built again if they have to return more."""
    needed = [*exported]
    parts: list[Part] = []
    for place in reversed(range(graph.last)):
        part = path[place].part if place < len(path) else None
        returned = set[Exported]() if part is None else {*part.exports, *part.results}
        if part is None or any(key.part == place and key not in returned for key in needed):
            before = [] if part is None else part.exports
            part = graph.part(place, [*before, *needed])
            needed += [source for source in part.inputs if isinstance(source, Exported)]
        parts.insert(0, part)
    return parts


def _values_of(constant: Tensor) -> str:
    """The values of a constant as text; each capture makes it anew."""
    if constant.numel() > _MANY or not is_plain(constant):
        return str(id(constant))
    return str(constant.tolist())


def _slot(source: int | Exported, places: Sequence[Slot], parts: Sequence[Part]) -> Slot:
    if isinstance(source, int):
        return places[source]
    part = parts[source.part]
    if source in part.results:
        return source.part + 1, part.results.index(source)
    operands = len(part.read.node.all_input_nodes)
    return source.part + 1, len(part.results) + operands + part.exports.index(source)


def are_same(path: Sequence[Split], reads: Sequence[Read]) -> bool:
    """Whether a capture came to the reads of a path, and then perhaps to more."""

    def key(read: Read) -> Any:
        return read.node.target, read.line, [node.name for node in read.node.all_input_nodes]

    pairs = zip(path, reads, strict=False)
    return all(key(node.part.read) == key(read) for node, read in pairs)


def tensors_of(answer: Any) -> Iterator[Tensor]:
    """The tensors that a read returned."""
    several = answer if isinstance(answer, tuple | list) else (answer,)
    return (value for value in several if isinstance(value, Tensor))


def _describe(answer: Any) -> str:
    """An answer as the report shows it: a number, or the shapes of tensors."""
    if isinstance(answer, bytes):
        return ", ".join(map(str, struct.unpack(f"{len(answer) // 8}d", answer)))
    if isinstance(answer, tuple):
        return str(answer[0] if isinstance(answer[0], tuple) else answer[1])
    return str(answer)
