"""The measurements of the workloads, as tables and sentences."""

import statistics
from dataclasses import dataclass

from benchmarks import page
from benchmarks.chains import FUNC, OURS, RAW
from benchmarks.comparisons import judged
from benchmarks.timing import Timing
from benchmarks.workloads.peers import COMPILED, EAGER, JIT, OURS_COMPILED, RAW_COMPILED, Ready
from benchmarks.workloads.workload import Workload

MICRO = 1e6
EVERYWHERE = (RAW, RAW_COMPILED, FUNC, COMPILED, JIT, EAGER)


@dataclass(frozen=True)
class Row:
    """A workload, the bar for its ratio to torch.func, and its peers' timings."""

    workload: Workload
    bar: float
    ready: Ready
    timings: dict[str, Timing]

    def cells(self) -> list[str]:
        ratio = self.timings[OURS].median / self.timings[FUNC].median
        return [
            self.workload.name,
            self.workload.size,
            *map(self._time, EVERYWHERE),
            "<br>".join(f"{name} {self._time(name)}" for name in self._specialists()),
            self._time(OURS),
            self._time(OURS_COMPILED),
            *judged(ratio, self.bar),
        ]

    def first_calls(self) -> list[str]:
        seconds = self.ready.first_calls
        peers = (*EVERYWHERE, OURS, OURS_COMPILED)
        shown = [f"{seconds[peer]:.2f}" if peer in seconds else "" for peer in peers]
        return [str(self.workload), *shown]

    def lead(self, peer: str, ours: str) -> float | None:
        """How many times faster than ours the peer is."""
        if peer not in self.timings or ours not in self.timings:
            return None
        return self.timings[ours].median / self.timings[peer].median

    def _specialists(self) -> list[str]:
        """The installed specialists."""
        missing = self.ready.missing
        return [name for name in self.workload.specialists if name not in missing]

    def _time(self, peer: str) -> str:
        if peer in self.ready.failures:
            return self.ready.failures[peer].kind
        if peer not in self.timings:
            return ""
        timing = self.timings[peer].scaled(MICRO)
        return f"{timing.median:,.0f} ({timing.spread:,.0f})"


def times(rows: list[Row]) -> str:
    peers = [f"{peer}, µs" for peer in EVERYWHERE]
    header = ["workload", "size", *peers, "specialist, µs", f"{OURS}, µs", f"{OURS_COMPILED}, µs"]
    return page.table([*header, f"{OURS} / {FUNC}", "bar"], [row.cells() for row in rows])


def first_calls(rows: list[Row]) -> str:
    header = ["the first call", *(f"{peer}, s" for peer in (*EVERYWHERE, OURS, OURS_COMPILED))]
    return page.table(header, [row.first_calls() for row in rows])


def leaders(rows: list[Row], ours: str) -> str:
    """Which peers are faster than ``ours``, in how many workloads and by what factor."""
    if not any(ours in row.timings for row in rows):
        return ""
    lines = []
    for peer in dict.fromkeys(peer for row in rows for peer in row.timings if peer != ours):
        leads = {str(row.workload): row.lead(peer, ours) for row in rows}
        measured = {name: lead for name, lead in leads.items() if lead is not None}
        faster = {name: lead for name, lead in measured.items() if lead > 1}
        most = max(faster, key=faster.__getitem__, default="")
        lines.append(
            [
                peer,
                f"{len(faster)} of {len(measured)}",
                f"{statistics.geometric_mean(faster.values()):.2f}" if faster else "",
                f"{faster[most]:.2f}" if faster else "",
                most,
            ]
        )
    header = [f"faster than {ours}", "in", "times, geometric mean", "times, at most", "at"]
    return page.table(header, lines)


def absences(rows: list[Row], left_out: tuple[str, ...]) -> str:
    """A sentence for each peer that is missing, left out, raises an error or is wrong."""
    sentences = [f"{peer} was left out of this run." for peer in left_out]
    missing = {peer: reason for row in rows for peer, reason in row.ready.missing.items()}
    sentences += [f"{peer} was skipped: {reason}." for peer, reason in missing.items()]
    failures = [failure for row in rows for failure in row.ready.failures.values()]
    sentences += [f"{failure.kind.capitalize()}: {failure.reason}" for failure in failures]
    return "\n".join(f"- {sentence}" for sentence in sentences)
