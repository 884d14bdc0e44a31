"""The savings of each pass of compiler/passes: operators and bytes moved, over all workloads.

``python -m benchmarks.compiled_passes`` prints the tables and writes them into
docs/compile-passes.md; nothing is timed.
"""

import itertools
from collections import Counter

import torchlayers
from benchmarks import page
from benchmarks.workloads import torch_operators
from benchmarks.workloads.catalogue import catalogue
from benchmarks.workloads.workload import Workload
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.costs import Costs, costs
from torchlayers.compiler.passes import FUSING, steps

MEGA = 1e6
FIRST_FOR_FUSING = FUSING[0].passes[0].__name__


def main() -> None:
    workloads = [workload for workload, _ in catalogue()]
    with page.progress(len(workloads)) as advance:
        each = []
        for workload in workloads:
            each.append(passes(workload))
            advance()
    for name, text in (
        ("passes", by_pass(each)),
        ("recordings", by_workload(workloads, each)),
    ):
        print(text)
        page.write("compile-passes.md", name, text)


def passes(workload: Workload) -> list[tuple[str, Costs]]:
    """The costs of a workload's captured graph after each pass, in order."""
    captured_graph = record(workload.program(torchlayers, torch_operators), workload.arguments)
    return [(name, costs(graph)) for name, graph in steps(captured_graph.graph, fuse_small=True)]


def by_pass(each: list[list[tuple[str, Costs]]]) -> str:
    """The savings of each pass, over all workloads; a pass that runs several times is one row."""
    operators: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for steps_of in each:
        for (_, before), (name, after) in itertools.pairwise(steps_of):
            operators[name] += before.operators - after.operators
            moved[name] += before.bytes_moved - after.bytes_moved
    names = list(dict.fromkeys(name for name, _ in each[0][1:]))
    rows = [[f"`{name}`", f"{operators[name]:,}", f"{moved[name] / MEGA:,.1f}"] for name in names]
    return page.table(["pass", "operators saved", "MB saved"], rows)


def by_workload(workloads: list[Workload], each: list[list[tuple[str, Costs]]]) -> str:
    rows = []
    for workload, steps_of in zip(workloads, each, strict=True):
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
