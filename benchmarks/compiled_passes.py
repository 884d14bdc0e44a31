"""The savings of each pass of compiler/passes: operators, arithmetic, bytes moved and time.

``python -m benchmarks.compiled_passes`` (ten minutes) prints the tables and writes them into
docs/compile-passes.md. Over all workloads, operators, flops and bytes are counted after each pass.
Then a program that needs the pass is compiled with and without it, and both are timed by turns.
"""

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch

import torchlayers
from benchmarks import page
from benchmarks.timing import Effort, by_turns
from benchmarks.workloads import torch_operators
from benchmarks.workloads.catalogue import catalogue
from benchmarks.workloads.passes import NEEDED_BY, Program
from benchmarks.workloads.workload import Workload
from torchlayers.compiler import passes as compiler_passes
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.costs import Costs, costs
from torchlayers.compiler.passes import FUSING, Stage, steps
from torchlayers.compiler.passes.entries.captured_constants import simplify_captured

MEGA = 1e6
FIRST_FOR_FUSING = FUSING[0].passes[0].__name__
HEADER = [
    "pass", "operators saved", "Mflop saved", "MB saved",
    "needed by", "flops without it", "bytes", "time",
]  # fmt: skip


class Needed(NamedTuple):
    """The costs of a program compiled without a pass, as multiples of those with it."""

    program: str
    flops: float
    bytes_moved: float
    time: float

    def cells(self) -> list[str]:
        numbers = (self.flops, self.bytes_moved, self.time)
        return [self.program, *(f"{number:.2f}" for number in numbers)]


def main() -> None:
    torch.set_num_threads(1)
    workloads = [workload for workload, _ in catalogue()]
    with page.progress(len(workloads) + len(NEEDED_BY)) as advance:
        costs_of = []
        for workload in workloads:
            costs_of.append(passes(workload))
            advance()
        needed = {}
        for name, program in NEEDED_BY.items():
            needed[name] = measure(name, program(), Effort(15, 0.1))
            advance()
    for name, text in (
        ("passes", by_pass(costs_of, needed)),
        ("recordings", by_workload(workloads, costs_of)),
    ):
        print(text)
        page.write("compile-passes.md", name, text)


def passes(workload: Workload) -> list[tuple[str, Costs]]:
    """The costs of a workload's captured graph after each pass, in order."""
    captured_graph = record(workload.program(torchlayers, torch_operators), workload.arguments)
    return [(name, costs(graph)) for name, graph in steps(captured_graph.graph, fuse_small=True)]


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Compiles without the pass of this name."""

    def remaining(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(
            stage._replace(passes=tuple(step for step in stage.passes if step.__name__ != name))
            for stage in stages
        )

    before = compiler_passes.STAGES, compiler_passes.FUSING, compiler_passes.share_steps
    compiler_passes.STAGES, compiler_passes.FUSING = map(remaining, before[:2])
    if name == compiler_passes.share_steps.__name__:
        compiler_passes.share_steps = lambda _: None
    try:
        yield
    finally:
        compiler_passes.STAGES, compiler_passes.FUSING, compiler_passes.share_steps = before


def measure(name: str, program: Program, effort: Effort) -> Needed:
    """Compiles the program with and without a pass, and counts and times both."""
    totals, works = {}, {}
    for label, left_out in (("with", ""), ("without", name)):
        with without(left_out):
            captured_graph = record(program.func, program.arguments)
            _, graph = simplify_captured(captured_graph, fuse_small=True)
            totals[label] = costs(graph)
            compiled = torchlayers.compile(program.func, wait=True, check=False)
            compiled(*program.arguments)
        works[label] = lambda compiled=compiled: compiled(*program.arguments)
    timings = by_turns(works, effort, time.process_time)
    one, other = totals["with"], totals["without"]
    return Needed(
        program.name,
        other.flops / max(1, one.flops),
        other.bytes_moved / max(1, one.bytes_moved),
        timings["without"].median / timings["with"].median,
    )


def by_pass(costs_of: list[list[tuple[str, Costs]]], needed: dict[str, Needed]) -> str:
    """The savings of each pass, over all workloads; a pass that runs several times is one row."""
    saved: dict[str, Counter[str]] = {}
    for steps_of in costs_of:
        for (_, before), (name, after) in itertools.pairwise(steps_of):
            of_pass = saved.setdefault(name, Counter())
            for count in ("operators", "flops", "bytes_moved"):
                of_pass[count] += getattr(before, count) - getattr(after, count)
    rows = []
    for name in dict.fromkeys([*saved, *needed]):
        count = saved.get(name, Counter())
        cells = needed[name].cells() if name in needed else [""] * 4
        rows.append([
            f"`{name}`", f"{count['operators']:,}", f"{count['flops'] / MEGA:,.1f}",
            f"{count['bytes_moved'] / MEGA:,.1f}", *cells,
        ])  # fmt: skip
    return page.table(HEADER, rows)


def by_workload(workloads: list[Workload], costs_of: list[list[tuple[str, Costs]]]) -> str:
    rows = []
    for workload, steps_of in zip(workloads, costs_of, strict=True):
        names = [name for name, _ in steps_of]
        recorded, left = steps_of[0][1], steps_of[-1][1]
        simple = steps_of[names.index(FIRST_FOR_FUSING) - 1][1]
        rows.append([
            str(workload),
            f"{recorded.operators:,}", f"{simple.operators:,}", f"{left.operators:,}",
            f"{recorded.bytes_moved / MEGA:,.2f}", f"{simple.bytes_moved / MEGA:,.2f}",
        ])  # fmt: skip
    header = ["workload", "operators recorded", "simplified", "for inductor", "MB", "simplified"]
    return page.table(header, rows)


if __name__ == "__main__":
    main()
