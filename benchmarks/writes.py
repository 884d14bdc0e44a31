"""In-place writes under vmap compared with torch.stack, and their cost for code without writes.

``python -m benchmarks.writes`` prints the table and writes it into docs/benchmarks.md; with
``--quick`` it is rough, and printed only.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.timing import Effort, Work, by_turns, check_same

BATCH = torch.linspace(-1, 1, 64 * 32).view(64, 32)
BAR = 1.5
HEADER = ["what", "written in place, µs", "stacked, µs", "ratio", "bar", "plain loop's ratio"]

Sample = Callable[[Tensor], Tensor]


def elements_written(x: Tensor) -> Tensor:
    y = torch.zeros(32)
    for i in range(32):
        y[i] = torch.sin(x[i])
    return y


def elements_stacked(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(x[i]) for i in range(32)])


def recurrence_written(x: Tensor) -> Tensor:
    y = torch.zeros(32)
    y[0] = x[0]
    for i in range(1, 32):
        y[i] = torch.tanh(0.9 * y[i - 1] + x[i])
    return y


def recurrence_stacked(x: Tensor) -> Tensor:
    y = [x[0]]
    for i in range(1, 32):
        y.append(torch.tanh(0.9 * y[-1] + x[i]))
    return torch.stack(y)


def rows_written(x: Tensor) -> Tensor:
    y = torch.empty(16, 32)
    for i in range(16):
        y[i] = x * i
    return y


def rows_stacked(x: Tensor) -> Tensor:
    return torch.stack([x * i for i in range(16)])


PAIRS: dict[str, tuple[Sample, Sample]] = {
    "32 elements": (elements_written, elements_stacked),
    "a recurrence of 32": (recurrence_written, recurrence_stacked),
    "16 rows": (rows_written, rows_stacked),
}


def vmapped(f: Sample) -> Work:
    transformed = tl.vmap(f)
    return lambda: transformed(BATCH)


def plain(f: Sample) -> Work:
    return lambda: f(BATCH[0])


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(5, 0.001) if quick else Effort(51, 0.002)
    rows = []
    for name, (written, stacked) in PAIRS.items():
        works = {
            "written": vmapped(written),
            "stacked": vmapped(stacked),
            "plain, written": plain(written),
            "plain, stacked": plain(stacked),
        }
        check_same({peer: works[peer] for peer in ("written", "stacked")})
        times = {peer: 1e6 * timing.median for peer, timing in by_turns(works, effort).items()}
        rows.append(
            [
                name,
                f"{times['written']:.0f}",
                f"{times['stacked']:.0f}",
                f"{times['written'] / times['stacked']:.2f}",
                f"{BAR:.2f}",
                f"{times['plain, written'] / times['plain, stacked']:.2f}",
            ]
        )
    return {"benchmarks.md": "\n\n".join([page.table(HEADER, rows), f"{machine.describe()}."])}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "writes")
