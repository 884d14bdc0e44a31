"""Where the time of a trace went, by operator and layer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torchlayers.core.html_table import html_lines, html_table
from torchlayers.core.text_table import aligned
from torchlayers.core.trace.calls import TracedCall, walk

ROWS_PRINTED = 25
_NUMBERS = (2, 3, 4)  # columns of the table


class SummaryRow(NamedTuple):
    """An operator at a layer; times are seconds, of all its calls.

    ``own`` was spent in the layer itself (for a kernel: in it), ``below`` in what it called;
    ``notes`` marks loops and copies.
    """

    operator: str
    place: str
    calls: int
    own: float
    below: float
    notes: str


class Loop(NamedTuple):
    """An operator that a vmap called for one sample after the other, on a line of the program.

    ``seconds`` is how long that took in all.
    """

    operator: str
    line: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """Where the time of a trace went; ``print`` shows it as a table.

    ``seconds`` is how long the traced block took: ``kernels`` in kernels, ``layers`` in layers
    (transforms' work for each operator, torch's code above the kernels, and capturing and calling
    compiled functions), ``python`` between
    operators inside transforms, and the rest outside all that was recorded. ``rows`` has a row for
    each operator at each layer, most expensive first; ``loops`` the operators that were called for
    one sample after the other, by the line of the program.
    """

    seconds: float
    kernels: float
    layers: float
    python: float
    rows: list[SummaryRow]
    loops: list["Loop"]

    @property
    def explained(self) -> float:
        """The share of the time that kernels, layers and Python inside transforms account for."""
        return (self.kernels + self.layers + self.python) / self.seconds if self.seconds else 0.0

    @classmethod
    def from_calls(cls, calls: list[TracedCall], seconds: float) -> "Summary":
        kernels = layers = python = 0
        grouped: dict[tuple[str, str], list[TracedCall]] = {}
        for call in walk(calls):
            if call.kind not in ("operator", "compiled"):
                python += call.own_nanoseconds
                continue
            if call.is_kernel:
                kernels += call.own_nanoseconds
            else:
                layers += call.own_nanoseconds
            grouped.setdefault((call.name, call.place), []).append(call)
        rows = [_row(name, place, group) for (name, place), group in grouped.items()]
        rows.sort(key=lambda row: -row.own)
        loops = _loops(call for group in grouped.values() for call in group)
        return cls(seconds, kernels / 1e9, layers / 1e9, python / 1e9, rows, loops)

    def __str__(self) -> str:
        return "\n".join([*self._lines(), "", *aligned(self._table(), right=_NUMBERS)])

    def _repr_html_(self) -> str:
        return html_lines(self._lines()) + html_table(self._table(), right=_NUMBERS)

    def _lines(self) -> list[str]:
        shares = ", ".join(
            f"{name} {self._share(spent)}"
            for name, spent in (
                ("kernels", self.kernels),
                ("layers", self.layers),
                ("Python inside transforms", self.python),
            )
        )
        head = f"{self.seconds * 1e3:.2f} ms: {shares}, outside {self._share(self._outside)}"
        loops = [
            f"{loop.operator} runs one sample at a time ({loop.line or 'no line of the program'}): "
            f"{loop.calls} calls, {loop.seconds * 1e3:.2f} ms, {self._share(loop.seconds)}"
            for loop in self.loops
        ]
        return [head, *loops]

    def _table(self) -> list[tuple[str, ...]]:
        table: list[tuple[str, ...]] = [("operator", "at", "calls", "own ms", "below ms", "notes")]
        for row in self.rows[:ROWS_PRINTED]:
            table.append(
                (
                    row.operator,
                    row.place,
                    str(row.calls),
                    f"{row.own * 1e3:.3f}",
                    f"{row.below * 1e3:.3f}",
                    row.notes,
                )
            )
        if len(self.rows) > ROWS_PRINTED:
            table.append((f"and {len(self.rows) - ROWS_PRINTED} more", "", "", "", "", ""))
        return table

    @property
    def _outside(self) -> float:
        return max(self.seconds - self.kernels - self.layers - self.python, 0.0)

    def _share(self, spent: float) -> str:
        return f"{100 * spent / self.seconds:.0f} %" if self.seconds else "0 %"


def _loops(calls: Iterable[TracedCall]) -> list[Loop]:
    by_line: dict[tuple[str, str], Loop] = {}
    for call in calls:
        if call.iterations:
            key = call.name, call.called_by_user.line
            _, _, count, seconds = by_line.get(key, Loop(*key, 0, 0.0))
            total = seconds + call.nanoseconds / 1e9
            by_line[key] = Loop(*key, count + call.iterations, total)
    return sorted(by_line.values(), key=lambda loop: -loop.seconds)


def _row(name: str, place: str, calls: list[TracedCall]) -> SummaryRow:
    self_time = sum(call.own_nanoseconds for call in calls)
    total = sum(call.nanoseconds for call in calls)
    notes = []
    if loops := [call.iterations for call in calls if call.iterations]:
        notes.append(f"loops: {sum(loops)} calls for {len(loops)}")
    if copies := sum(call.is_copy for call in calls):
        notes.append(f"{copies} copies made by layers")
    if captured := sum(call.is_captured for call in calls):
        notes.append(f"{captured} captured")
    if raised := sum(call.has_raised for call in calls):
        notes.append(f"{raised} raised")
    return SummaryRow(
        name, place, len(calls), self_time / 1e9, (total - self_time) / 1e9, "; ".join(notes)
    )
