"""The first table: the cost of an operator and of a call under each transform.

``python -m benchmarks.first_table`` prints it and writes it into docs/benchmarks.md;
with ``--quick`` it is rough, and printed only.
"""

from dataclasses import dataclass

from benchmarks import device, fresh, jacobians, machine, page
from benchmarks.chains import FUNC, OURS, PEERS, RAW, peers, workloads
from benchmarks.timing import Effort, Timing, compare

MICRO, MILLI = 1e6, 1e3


@dataclass(frozen=True)
class Row:
    """The name of the timed work, and each peer's microseconds; absent peers are left out."""

    what: str
    timings: dict[str, Timing]

    def cells(self) -> list[str]:
        return [
            self.what,
            *(self._time(peer) for peer in PEERS),
            self._ratio(RAW),
            self._ratio(FUNC),
        ]

    def _time(self, peer: str) -> str:
        return str(self.timings.get(peer, ""))

    def _ratio(self, peer: str) -> str:
        if peer not in self.timings:
            return ""
        return f"{self.timings[OURS].median / self.timings[peer].median:.2f}"


def measure(quick: bool) -> dict[str, str]:
    """The table, followed by the import times and a line about the machine."""
    effort, pairs = (Effort(9, 0.001), 2) if quick else (Effort(101, 0.003), 9)
    works = [
        (f"{transform}, {workload.name}", workload.divisor, work)
        for workload in workloads()
        for transform, work in peers(workload).items()
    ]
    pairs = pairs if device.is_processor() else 0
    works += [(f"{transform}, a call", 1, work) for transform, work in jacobians.peers().items()]
    with page.progress(len(works) + pairs) as advance:
        rows = []
        for what, divisor, work in works:
            rows.append(_row(what, divisor, compare(work, effort)))
            advance()
        alone, ours = [], []
        for _ in range(pairs):
            alone.append(fresh.measure(with_torchlayers=False))
            ours.append(fresh.measure(with_torchlayers=True))
            advance()
    parts = [f"{machine.describe()}."]
    if pairs:
        rows.append(_plain_row(alone, ours))
        parts.insert(0, _imports(ours))
    return {"benchmarks.md": "\n\n".join([_markdown(rows), *parts])}


def _row(what: str, divisor: int, seconds: dict[str, Timing]) -> Row:
    factor = MICRO / divisor
    return Row(what, {peer: timing.scaled(factor) for peer, timing in seconds.items()})


def _plain_row(alone: list[dict[str, float]], ours: list[dict[str, float]]) -> Row:
    timings = {
        peer: Timing.of([seconds["operator"] for seconds in runs]).scaled(MICRO)
        for peer, runs in ((RAW, alone), (OURS, ours))
    }
    return Row("a plain operator with no layer active", timings)


def _imports(ours: list[dict[str, float]]) -> str:
    after, first = (
        Timing.of([seconds[module] for seconds in ours]).scaled(MILLI)
        for module in ("torchlayers", "torch")
    )
    return (
        f"`import torchlayers` takes {after.median:.0f} ms ({after.spread:.0f}) over "
        f"`import torch`, which takes {first.median:.0f} ms ({first.spread:.0f})."
    )


def _markdown(rows: list[Row]) -> str:
    header = ["what", *(f"{peer}, µs" for peer in PEERS), f"{OURS} / raw", f"{OURS} / {FUNC}"]
    return page.table(header, [row.cells() for row in rows])


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "first table")
