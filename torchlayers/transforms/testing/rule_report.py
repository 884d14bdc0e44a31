"""What check_rules has checked, and where rules are wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchlayers.core.text_table import aligned

_ROWS = 60
_ROWS_OF_ONE = 3
_WIDTHS = (40, 80, 12, 64, 64)
_HEADER = ("operator", "sample", "nest", "expected", "got")


@dataclass(frozen=True)
class RuleFailure:
    """One comparison that failed: of which operator, on which sample, in which nest."""

    operator: str
    sample: str
    nest: str
    expected: str
    got: str


@dataclass
class RuleReport:
    """The result of :func:`torchlayers.testing.check_rules`.

    Attributes:
        checked: by operator, the number of comparisons made.
        failures: the comparisons that failed.
        without_sample: the rules, or operators asked for, for which there was no sample.
        skipped: those that were left out, with the reasons given.
    Example:
        >>> RuleReport({"aten.sin.default": 12}, [], [], {})
        1 operator in 12 comparisons: all agree
    """

    checked: dict[str, int] = field(default_factory=dict)
    failures: list[RuleFailure] = field(default_factory=list)
    without_sample: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        operators = len(self.checked)
        comparisons = sum(self.checked.values())
        agree = f"{len(self.failures)} differ" if self.failures else "all agree"
        lines = [
            f"{operators} operator{'s' * (operators != 1)} in {comparisons} comparisons: {agree}"
        ]
        if self.failures:
            shown = self._select_failures()
            lines += _table([_HEADER, *map(_row, shown)])
            if len(shown) < len(self.failures):
                lines.append(
                    f"and {len(self.failures) - len(shown)} more, in error.report.failures"
                )
        lines += [f"no sample: {name}" for name in self.without_sample]
        if self.without_sample:
            lines.append("Pass samples={op: [arguments, ...]} for these, or skip={op: reason}.")
        lines += [f"skipped: {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)

    def _select_failures(self) -> list[RuleFailure]:
        """The first few failures of each operator."""
        counts: dict[str, int] = {}
        shown = []
        for failure in self.failures:
            counts[failure.operator] = counts.get(failure.operator, 0) + 1
            if counts[failure.operator] <= _ROWS_OF_ONE:
                shown.append(failure)
        return shown[:_ROWS]


def _row(failure: RuleFailure) -> tuple[Any, ...]:
    return failure.operator, failure.sample, failure.nest, failure.expected, failure.got


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    cut = [
        [
            cell if len(cell) <= width else f"{cell[: width - 1]}…"
            for cell, width in zip((" ".join(cell.split()) for cell in row), _WIDTHS, strict=True)
        ]
        for row in rows
    ]
    return aligned(cut)
