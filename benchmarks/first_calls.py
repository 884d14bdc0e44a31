"""The time of the first call of a compiled function, in seconds.

``python -m benchmarks.first_calls`` prints the table and writes it into docs/workloads.md; with
``--small`` it measures the small workloads, and prints only. ``--leave-out "torch.func compiled"``
runs without that peer, which takes half of the time.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torchlayers
from benchmarks import machine, page
from benchmarks.chains import OURS
from benchmarks.workloads import torch_operators
from benchmarks.workloads.__main__ import compiler_cache, use_one_thread, versions
from benchmarks.workloads.catalogue import catalogue, small
from benchmarks.workloads.peers import (
    COMPILED,
    JIT,
    OURS_COMPILED,
    compiled_by_torch,
    jax_work,
    warm_up_compiler,
)
from benchmarks.workloads.workload import Workload

REPLAY = f"{OURS}, replay"
NAMES = (JIT, REPLAY, COMPILED, OURS_COMPILED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="the small ones, printed only")
    parser.add_argument("--leave-out", action="append", choices=NAMES, default=[])
    options = parser.parse_args()
    use_one_thread()
    names = [name for name in NAMES if name not in options.leave_out]
    workloads = small() if options.small else [workload for workload, _ in catalogue()]
    rows = []
    with compiler_cache(), page.progress(len(workloads)) as advance:
        warm_up_compiler()
        for workload in workloads:
            rows.append({name: first_call(MAKERS[name], workload) for name in names})
            advance()
    text = f"{table(workloads, names, rows)}\n\n{machine.describe()}{versions()}."
    print(text)
    if not options.small:
        page.write("workloads.md", "first calls", text)


def first_call(make: Callable[[Workload], Callable[[], object]], workload: Workload) -> float:
    """Wall time, because compilers use other processes; nan if the peer raises an error."""
    start = time.perf_counter()
    try:
        make(workload)()
    except Exception:
        return math.nan
    return time.perf_counter() - start


def table(workloads: list[Workload], names: list[str], rows: list[dict[str, float]]) -> str:
    """The table, with the ratios that have a bar, and their geometric means in the last row."""
    ratios = [(REPLAY, JIT), (OURS_COMPILED, COMPILED)]
    ratios = [pair for pair in ratios if {*pair} <= {*names}]
    lines, columns = [], [[_ratio(row, *pair) for row in rows] for pair in ratios]
    for at, (workload, row) in enumerate(zip(workloads, rows, strict=True)):
        seconds = ["" if math.isnan(row[name]) else f"{row[name]:.2f}" for name in names]
        lines.append([str(workload), *seconds, *(_shown(column[at]) for column in columns)])
    means = [
        statistics.geometric_mean(value for value in column if not math.isnan(value))
        for column in columns
    ]
    lines.append(["geometric mean", *[""] * len(names), *map(_shown, means)])
    head = [*(f"{name}, s" for name in names), *(f"{one} / {other}" for one, other in ratios)]
    return page.table(["the first call", *head], lines)


def _ratio(row: dict[str, float], one: str, other: str) -> float:
    return row[one] / row[other]


def _shown(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{ratio:.2f}"


def _ours(backend: str) -> Callable[[Workload], Callable[[], object]]:
    def make(workload: Workload) -> Callable[[], object]:
        function = torchlayers.compile(
            workload.program(torchlayers, torch_operators), backend=backend, wait=True
        )
        return lambda: function(*workload.arguments)

    return make


MAKERS: dict[str, Callable[[Workload], Callable[[], object]]] = {
    JIT: lambda workload: jax_work(workload, compiled=True),
    REPLAY: _ours("replay"),
    COMPILED: compiled_by_torch,
    OURS_COMPILED: _ours("inductor"),
}


if __name__ == "__main__":
    main()
