"""The report of coverage(): rows for operators and layers, and whether f is captured."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torchlayers.compiler.operator_coverage import (
    ADVICE,
    MODES,
)
from torchlayers.compiler.runtime.report import listed
from torchlayers.core.text_table import aligned


class OperatorCoverage(NamedTuple):
    """An operator that a program calls, and what each transform around the program does with it.

    ``vmap``, ``jvp`` and ``grad`` are "rule" (of torchlayers), "typed kernel" (the same, by the
    cheapest way), "torch's" (rule or formula), "decomposed" (into the rows indented below it),
    "loops" (over the samples), "draws" (needs vmap's randomness=), "fails", "-" (nothing to do, as
    for a result without a derivative), or "" where the transform does not reach it, because it has
    a rule for the operator of which this is a part.

    ``depth`` is 0 for an operator that the program calls, 1 for a part of it, and so on; ``line``
    is where the program called it first, such as "train.py:7".
    """

    operator: str
    calls: int
    vmap: str
    jvp: str
    grad: str
    line: str
    depth: int


class LayerCoverage(NamedTuple):
    """What a transform inside the program did with an operator.

    ``layer`` is its kind and level, "vmap (level 1)"; ``how`` is as in a trace; ``loops`` counts
    the calls for single samples, 0 if there were none.
    """

    operator: str
    layer: str
    how: str
    calls: int
    loops: int
    line: str


class CompileCoverage(NamedTuple):
    """What compile would do, at the first call and at later ones.

    ``how`` is "inductor", "replay", "in parts", "captured at each call" or "not compiled"; ``why``,
    if it is not "inductor", the reason; ``operators`` how many the simplified graph has (of parts:
    the last one's); ``guards`` the Python values that are checked before each call: if one has
    changed, the function is captured again, as it is where something in ``differs`` differs.
    ``recorded`` is how it runs where autograd records the call: "compiled", "uncompiled, because
    ...", or "" if no argument requires grad.
    """

    how: str
    why: str
    operators: int
    guards: tuple[str, ...]
    differs: tuple[str, ...] = ()
    recorded: str = ""


class Coverage(NamedTuple):
    """The result of :func:`torchlayers.coverage`; it prints as tables.

    ``operators`` are the operators that arrive where a transform around the program would process
    them, in the order of their first calls; ``layers`` says what the program's own transforms did.
    ``problems`` has a line for each operator that loops, fails, or needs an option.
    """

    name: str
    operators: tuple[OperatorCoverage, ...]
    layers: tuple[LayerCoverage, ...]
    compiled: CompileCoverage | None
    dropped: int

    @property
    def problems(self) -> tuple[str, ...]:
        problems = [
            f"{mode}: {row.operator} {getattr(row, mode)}{_place_of(row.line)}: {advice}"
            for row in self.operators
            for mode in MODES
            if (advice := ADVICE.get((mode, getattr(row, mode))))
        ]
        problems += [
            f"{row.layer}: {row.operator} has run {row.loops} times for {row.calls}"
            f"{_place_of(row.line)}: {ADVICE['vmap', 'loops']}"
            for row in self.layers
            if row.loops
        ]
        return tuple(problems)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.name}: {_counted(self.operators, 'operator')}, "
            f"{_counted(self.problems, 'problem')}"
        )
        if self.dropped:
            yield f"(the first {self.dropped} calls are not included)"
        if self.operators:
            yield ""
            head: tuple[str, ...] = ("operator", "calls", *MODES, "line")
            rows = [
                ("  " * row.depth + row.operator, str(row.calls), *row[2:5], row.line)
                for row in self.operators
            ]
            yield from aligned([head, *rows])
        if self.layers:
            yield ""
            head = ("inside f", "at", "calls", "how", "line")
            inside = [
                (row.operator, row.layer, str(row.calls), row.how, row.line) for row in self.layers
            ]
            yield from aligned([head, *inside])
        if self.problems:
            yield ""
            yield from self.problems
        if self.compiled is not None:
            yield ""
            how, why, operators, guards, differs, recorded = self.compiled
            count = f", {operators} operator{'' if operators == 1 else 's'}" if operators else ""
            yield f"compile: {how}{count}" + (f", because {why}" if why else "")
            if recorded:
                yield f"         with gradients by autograd: {recorded}"
            if differs:
                yield f"         captured again if they differ: {'; '.join(differs)}"
            if guards:
                yield f"         guards: {listed(guards)}"


def _counted(items: Sequence[Any], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _place_of(line: str) -> str:
    return f" ({line})" if line else ""
