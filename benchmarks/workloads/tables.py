"""The measurements of the workloads, as tables and sentences."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import torchlayers
from benchmarks import page
from benchmarks.chains import FUNC, OURS, RAW
from benchmarks.comparisons import judged
from benchmarks.machine import Rates
from benchmarks.peak import peak_bytes
from benchmarks.timing import Timing
from benchmarks.workloads import torch_operators
from benchmarks.workloads.peers import COMPILED, EAGER, JIT, OURS_COMPILED, RAW_COMPILED, Ready
from benchmarks.workloads.workload import Workload
from torchlayers.core.flops import convolution_backward_flops

MICRO, MILLI, MEBI = 1e6, 1e3, 2**20
EVERYWHERE = (RAW, RAW_COMPILED, FUNC, COMPILED, JIT, EAGER)
OTHER_REAL_PEERS = (FUNC, COMPILED, JIT)
REAL_PEERS = (*OTHER_REAL_PEERS, OURS, OURS_COMPILED)
BACKWARD = {torch.ops.aten.convolution_backward: convolution_backward_flops}
PEAK_MOST = 1.1  # times eager's
OURS_MOST = 1.03  # times the others, for workloads of real size: equal but for noise


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
            *map(self.time, EVERYWHERE),
            specialists(self),
            self.time(OURS),
            self.time(OURS_COMPILED),
            *judged(ratio, self.bar),
        ]

    def lead(self, peer: str, ours: str) -> float | None:
        """How many times faster than ours the peer is."""
        if peer not in self.timings or ours not in self.timings:
            return None
        return self.timings[ours].median / self.timings[peer].median

    def time(self, peer: str) -> str:
        if peer in self.ready.failures:
            return self.ready.failures[peer].kind
        if peer not in self.timings:
            return ""
        timing = self.timings[peer].scaled(MICRO)
        return f"{timing.median:,.0f} ({timing.spread:,.0f})"


@dataclass(frozen=True)
class RealRow:
    """A workload of real size, its peers' timings and peaks of memory, the machine's rates."""

    workload: Workload
    ready: Ready
    timings: dict[str, Timing]
    peaks: dict[str, int]
    rates: Rates

    def cells(self) -> list[str]:
        ours, limit = self.timings[OURS_COMPILED].median, self.limit()
        others = (OURS, COMPILED, JIT)
        return [
            self.workload.name,
            self.workload.size,
            *map(self.time, OTHER_REAL_PEERS),
            specialists(self),
            self.time(OURS),
            self.time(OURS_COMPILED),
            *(self._ratio(peer) for peer in others),
            f"{limit * MILLI:.1f}",
            f"{limit / ours:.2f}",
        ]

    def peak_cells(self) -> list[str]:
        shown = [f"{self.peaks[peer] / MEBI:.1f}" if peer in self.peaks else "" for peer in TORCHS]
        if not self.peaks.keys() >= {OURS, OURS_COMPILED}:
            return [str(self.workload), *shown, ""]
        ratio = self.peaks[OURS_COMPILED] / self.peaks[OURS]
        missed = ", missed" if ratio > PEAK_MOST else ""
        return [str(self.workload), *shown, f"{ratio:.2f}{missed}"]

    def limit(self) -> float:
        """The seconds that the machine needs at least: for the products and convolutions of the
        captured and simplified graph, or to read the arguments and write the results."""
        function = torchlayers.compile(self.workload.program(torchlayers, torch_operators))
        arguments = pytree.tree_leaves(self.workload.arguments)
        run = torch.fx.Interpreter(function.lower(*self.workload.arguments).graph).run
        with FlopCounterMode(display=False, custom_mapping=BACKWARD) as counter:
            results = run(*arguments)
        held = (*arguments, *pytree.tree_leaves(results))
        moved = sum(leaf.nbytes for leaf in held if isinstance(leaf, torch.Tensor))
        return max(counter.get_total_flops() / self.rates.flops, moved / self.rates.bytes)

    def _ratio(self, peer: str) -> str:
        if peer not in self.timings:
            return ""
        ratio = self.timings[OURS_COMPILED].median / self.timings[peer].median
        missed = ", missed" if ratio > OURS_MOST and peer != JIT else ""
        return f"{ratio:.2f}{missed}"

    def time(self, peer: str) -> str:
        if peer in self.ready.failures:
            return self.ready.failures[peer].kind
        if peer not in self.timings:
            return ""
        timing = self.timings[peer].scaled(MILLI)
        return f"{timing.median:.1f} ({timing.spread:.1f})"


TORCHS = tuple(peer for peer in REAL_PEERS if peer != JIT)  # whose memory torch allocates


def specialists(row: Row | RealRow) -> str:
    """The times of the installed ones."""
    installed = [name for name in row.workload.specialists if name not in row.ready.missing]
    return "<br>".join(f"{name} {row.time(name)}" for name in installed)


def peaks(ready: Ready) -> dict[str, int]:
    """The peak of memory of each peer that torch's allocator serves."""
    return {peer: peak_bytes(work) for peer, work in ready.works.items() if peer in TORCHS}


def real_times(rows: list[RealRow]) -> str:
    compared = (OURS, COMPILED, JIT)
    peers = (*OTHER_REAL_PEERS, "specialist", OURS, OURS_COMPILED)
    header = [
        "workload",
        "size",
        *(f"{peer}, ms" for peer in peers),
        *(f"{OURS_COMPILED} / {peer}" for peer in compared),
        "machine's limit, ms",
        f"limit / {OURS_COMPILED}",
    ]
    return page.table(header, [row.cells() for row in rows])


def peak_memory(rows: list[RealRow]) -> str:
    header = ["peak of memory", *(f"{peer}, MiB" for peer in TORCHS)]
    header.append(f"{OURS_COMPILED} / {OURS}")
    return page.table(header, [row.peak_cells() for row in rows])


def times(rows: list[Row]) -> str:
    peers = [f"{peer}, µs" for peer in EVERYWHERE]
    header = ["workload", "size", *peers, "specialist, µs", f"{OURS}, µs", f"{OURS_COMPILED}, µs"]
    return page.table([*header, f"{OURS} / {FUNC}", "bar"], [row.cells() for row in rows])


def first_calls(
    rows: Sequence[Row | RealRow], peers: Sequence[str] = (*EVERYWHERE, OURS, OURS_COMPILED)
) -> str:
    def cells(row: Row | RealRow) -> list[str]:
        seconds = row.ready.first_calls
        shown = [f"{seconds[peer]:.2f}" if peer in seconds else "" for peer in peers]
        return [str(row.workload), *shown]

    header = ["the first call", *(f"{peer}, s" for peer in peers)]
    return page.table(header, [cells(row) for row in rows])


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


def absences(rows: Sequence[Row | RealRow], left_out: tuple[str, ...]) -> str:
    """A sentence for each peer that is missing, left out, raises an error or is wrong."""
    sentences = [f"{peer} was left out of this run." for peer in left_out]
    missing = {peer: reason for row in rows for peer, reason in row.ready.missing.items()}
    sentences += [f"{peer} was skipped: {reason}." for peer, reason in missing.items()]
    failures = [failure for row in rows for failure in row.ready.failures.values()]
    sentences += [f"{failure.kind.capitalize()}: {failure.reason}" for failure in failures]
    return "\n".join(f"- {sentence}" for sentence in sentences)
