"""Batching: vmap and vmap(grad) of the survey's 60 operators, compared with torch.func.

``python -m benchmarks.batching`` prints the tables and writes them into docs/benchmarks.md;
with ``--quick`` they are rough, and printed only.
"""

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from benchmarks import machine, page
from benchmarks.chains import FUNC, OURS, Workload
from benchmarks.comparisons import HEADER, LIBRARIES, Comparison, measured, summary
from benchmarks.operators import every, last, survey
from benchmarks.timing import Effort, Timing, Work

MEAN_BARS = {"vmap": 0.45, "vmap(grad)": 0.58}

Transform = Callable[[ModuleType, Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]
Timings = dict[str, dict[str, Timing]]


def measure(quick: bool) -> dict[str, str]:
    """A row for each bar, and the operators one by one."""
    effort = Effort(5, 0.001) if quick else Effort(51, 0.002)
    by_transform = {
        "vmap": _compared(survey(last), lambda library, f: library.vmap(f)),
        "vmap(grad)": _compared(survey(_total), lambda library, f: library.vmap(library.grad(f))),
    }
    timings = {
        transform: measured([], effort, operators, effort)[1]
        for transform, operators in by_transform.items()
    }
    lines = [line for name, of in timings.items() for line in summary(name, of, MEAN_BARS[name])]
    parts = [page.table(HEADER[:-1], [line[:-1] for line in lines]), _table(timings)]
    return {"benchmarks.md": "\n\n".join([*parts, f"{machine.describe()}."])}


def _total(operator: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Calls the operator eight times, and reduces all results to one number.

    A plain sum would not do: that of a softmax or a batch norm has only rounding as its gradient.
    """
    return lambda x: torch.stack(every(operator)(x)).mean(0).sin().sum()


def _compared(workloads: list[Workload], transform: Transform) -> list[Comparison]:
    """Seconds for a batch of eight, divided by the eight calls of the operator."""

    def work(library: ModuleType, workload: Workload) -> Work:
        transformed = transform(library, workload.function)
        return lambda: transformed(workload.batch)

    return [
        Comparison(
            workload.name,
            {peer: work(library, workload) for peer, library in LIBRARIES.items()},
            divisor=workload.divisor,
        )
        for workload in workloads
    ]


def _table(timings: dict[str, Timings]) -> str:
    """The operators as rows, the slowest under vmap compared with torch.func first."""
    rows = []
    for name in timings["vmap"]:
        cells = [name]
        for of in timings.values():
            theirs, ours = of[name][FUNC], of[name][OURS]
            cells += [str(theirs), str(ours), f"{ours.median / theirs.median:.2f}"]
        rows.append(cells)
    rows.sort(key=lambda row: -float(row[3]))
    header = ["operator"]
    for transform in timings:
        header += [f"{transform}, {FUNC}, µs", f"{OURS}, µs", "ratio"]
    return page.table(header, rows)


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "batching")
