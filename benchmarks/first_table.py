"""The first table: an operator's and a call's cost under each transform.

``python -m benchmarks.first_table`` prints it and writes it into docs/benchmarks.md;
with ``--quick`` it is rough, and printed only.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import fresh, machine
from benchmarks.chains import FUNC, OURS, PEERS, RAW, Workload, peers, workloads
from benchmarks.timing import Effort, Timing, compare

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- first table: begin -->", "<!-- first table: end -->"
MICRO, MILLI = 1e6, 1e3


@dataclass(frozen=True)
class Row:
    """What was timed, and each peer's microseconds; a peer that has no part is left out."""

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
        if peer not in self.timings:
            return ""
        timing = self.timings[peer]
        return f"{timing.median:.2f} ({timing.spread:.2f})"

    def _ratio(self, peer: str) -> str:
        if peer not in self.timings:
            return ""
        return f"{self.timings[OURS].median / self.timings[peer].median:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough table, printed only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    effort, pairs = (Effort(9, 0.001), 2) if quick else (Effort(101, 0.003), 9)
    table = measure(effort, pairs)
    print(table)
    if not quick:
        write(table)


def measure(effort: Effort, pairs: int) -> str:
    """The table, with the machine and the import times under it."""
    works = [(load, name, work) for load in workloads() for name, work in peers(load).items()]
    with progress(len(works) + pairs) as advance:
        rows = []
        for workload, transform, work in works:
            seconds = compare(work, effort)
            rows.append(_row(workload, transform, seconds))
            advance()
        alone, ours = [], []
        for _ in range(pairs):
            alone.append(fresh.measure(with_torchlayers=False))
            ours.append(fresh.measure(with_torchlayers=True))
            advance()
    rows.append(_plain_row(alone, ours))
    return f"{_markdown(rows)}\n\n{_imports(ours)}\n\n{machine.describe()}."


def _row(workload: Workload, transform: str, seconds: dict[str, Timing]) -> Row:
    factor = MICRO / workload.divisor
    timings = {peer: timing.scaled(factor) for peer, timing in seconds.items()}
    return Row(f"{transform}, {workload.name}", timings)


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
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def write(table: str) -> None:
    """Puts the table between the markers of docs/benchmarks.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"{PAGE.name} lacks the markers {BEGIN} and {END}.")
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[], Any]]:
    """A bar, or dots where tqdm is not installed; calling what it yields advances it."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda: print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return
    with tqdm(total=total) as bar:
        yield bar.update


if __name__ == "__main__":
    main()
