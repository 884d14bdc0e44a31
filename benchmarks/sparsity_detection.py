"""Time and memory of sparsity detection, by the number of unknowns.

    python -m benchmarks.sparsity_detection

Five-point stencils on square grids, as slices, as a convolution and as an energy, whose Hessian has
that pattern. Memory is the peak of the process beyond that before the detection, measured in a
process for each.
"""

import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from benchmarks import machine

SIZES = (1_000, 10_000, 100_000)
REPEATS = 3
KERNEL = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=torch.float64)


def slices(u: Tensor) -> Tensor:
    v = F.pad(u, (1, 1, 1, 1))
    around = v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:]
    return around - 4 * u + u.exp() * u


def convolution(u: Tensor) -> Tensor:
    return F.conv2d(u[None, None], KERNEL[None, None], padding=1)[0, 0] + u.exp()


def energy(u: Tensor) -> Tensor:
    v = F.pad(u, (1, 1, 1, 1))
    return ((v[1:] - v[:-1]) ** 2).sum() + ((v[:, 1:] - v[:, :-1]) ** 2).sum() + u.exp().sum()


WORKS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "slices": (slices, "jacobian"),
    "convolution": (convolution, "jacobian"),
    "energy": (energy, "hessian"),
}


def measure(name: str, size: int) -> tuple[int, float, float]:
    """Entries, seconds (the best of some calls) and MiB."""
    f, of = WORKS[name]
    side = math.isqrt(size)
    u = torch.rand(side, side, dtype=torch.float64)
    tl.sparsity(f, u[:4, :4].clone(), of=of)  # imports the rules
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        pattern = tl.sparsity(f, u, of=of)
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pattern.nnz, min(times), (peak - before) / 1024


def main() -> None:
    if len(sys.argv) == 3:
        torch.set_num_threads(1)
        print(*measure(sys.argv[1], int(sys.argv[2])))
        return
    print(machine.describe())
    print("| stencil | unknowns | entries | seconds | MiB | bytes an entry |")
    print("|---|---|---|---|---|---|")
    for name in WORKS:
        for size in SIZES:
            command = [sys.executable, "-m", "benchmarks.sparsity_detection", name, str(size)]
            words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            entries, seconds, memory = map(float, words.split())
            each = memory * 2**20 / entries
            print(
                f"| {name} | {math.isqrt(size) ** 2} | {entries:.0f} | {seconds:.3f} | "
                f"{memory:.0f} | {each:.0f} |"
            )


if __name__ == "__main__":
    main()
