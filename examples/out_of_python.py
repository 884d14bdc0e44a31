"""Exports a per-sample gradient and a Hessian as native code, and times a C++ program with them.

    python -m examples.out_of_python

builds examples/cpp in build/cpp with CMake, and prints the time of a call there, of the same
package in Python, and of the compiled function.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchlayers as tl

SOURCES = Path(__file__).parent / "cpp"


class Timing(NamedTuple):
    """Microseconds of a call, and seconds of making the package."""

    in_cpp: float
    package: float
    compiled: float
    export_seconds: float
    package_seconds: float
    sums: list[float]
    expected: list[float]


def energy(x: Tensor) -> Tensor:
    return NETWORK(x).square().sum()


torch.manual_seed(0)
NETWORK = nn.Sequential(
    *(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
).requires_grad_(False)

# Of each function an argument; the C++ program makes the same numbers.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "per_sample_gradients": (tl.vmap(tl.grad(energy)), (256, 3)),
    "hessian": (tl.hessian(energy), (3,)),
}


def ramp(shape: tuple[int, ...]) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def microseconds(function: Callable[..., Any], x: Tensor, calls: int) -> float:
    """The least time of a call, over seven rounds."""
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(calls):
            function(x)
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def build(folder: Path) -> None:
    """Builds the programs of examples/cpp, with the cmake of this environment or the machine's."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake", path=places)
    if cmake is None:
        raise RuntimeError("cmake is not installed: pip install cmake")
    configure = [cmake, "-S", SOURCES, "-B", folder, f"-DPYTHON={sys.executable}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run([cmake, "--build", folder], check=True, capture_output=True)


def measure(name: str, folder: Path, calls: int) -> Timing:
    function, shape = FUNCTIONS[name]
    x = ramp(shape)
    start = time.perf_counter()
    exported = tl.export(function, x)
    exported_at = time.perf_counter()
    path = folder / f"{name}.pt2"
    exported.to_aot(path)
    saved_at = time.perf_counter()
    compiled, loaded = tl.compile(function, wait=True), tl.load(path)
    compiled(x)
    sizes = ",".join(map(str, shape))
    program = [folder / "time_package", str(calls), path, sizes]
    run = subprocess.run(program, check=True, capture_output=True, text=True)
    *sums, in_cpp = map(float, run.stdout.split())
    return Timing(
        in_cpp,
        microseconds(loaded, x, calls),
        microseconds(compiled, x, calls),
        exported_at - start,
        saved_at - exported_at,
        sums,
        [function(x).sum().item()],
    )


def main() -> None:
    folder = SOURCES.parents[1] / "build" / "cpp"
    torch.set_num_threads(1)
    build(folder)
    print(
        f"{'':22}{'C++':>8}{'package':>10}{'compile':>10}   µs a call; export, package in seconds"
    )
    for name in FUNCTIONS:
        timing = measure(name, folder, calls=300)
        print(
            f"{name:22}{timing.in_cpp:8.1f}{timing.package:10.1f}{timing.compiled:10.1f}"
            f"   {timing.export_seconds:.1f}, {timing.package_seconds:.1f}"
        )


if __name__ == "__main__":
    main()
