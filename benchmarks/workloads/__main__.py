"""Whole workloads by torchlayers, the raw engine, torch.func, torch.compile, JAX and specialists.

``python -m benchmarks.workloads`` prints the tables and writes them into docs/workloads.md;
with ``--threads all`` it measures the large ones on all cores; with ``--quick`` it measures the
small ones roughly, and prints only. ``--leave-out "JAX eager"`` runs without a peer. ``--size
real`` measures networks of the size that people train, ``--only resnet`` some of those.
"""

import argparse
import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from unittest import mock

import torch

from benchmarks import device, machine, page
from benchmarks.chains import OURS
from benchmarks.timing import Effort, by_turns
from benchmarks.workloads import tables
from benchmarks.workloads.catalogue import LARGE_BAR, SMALL_BAR, catalogue, large, small
from benchmarks.workloads.peers import (
    COMPILED,
    EAGER,
    IN_BACKGROUND,
    JIT,
    OURS_COMPILED,
    RAW_COMPILED,
    prepare,
    time_background,
    warm_up_compiler,
)
from benchmarks.workloads.real_size import real

REAL_EFFORT = Effort(9, 0.003)
PACKAGES = ("jax", "opacus", "backpack-for-pytorch", "curvlinops-for-pytorch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small ones, printed only")
    parser.add_argument("--threads", choices=("one", "all"), default="one")
    parser.add_argument("--size", choices=("small and large", "real"), default="small and large")
    parser.add_argument("--only", default="", help="the ones of real size with this in the name")
    others = (COMPILED, RAW_COMPILED, JIT, EAGER, OURS_COMPILED)
    parser.add_argument("--leave-out", action="append", choices=others, default=[])
    device.add_option(parser)
    options = parser.parse_args()
    if options.threads == "one":
        use_one_thread()
    real_size = options.size == "real"
    left_out = tuple(options.leave_out)
    with device.use(options.device):
        if real_size:
            text = measure_real_size(options.threads, left_out, options.only)
        else:
            text = measure(options.quick, options.threads, left_out)
    print(text)
    if not options.quick and not options.only:
        where = options.threads if options.device == "cpu" else options.device
        page.write("workloads.md", f"{'real size' if real_size else 'workloads'}, {where}", text)


def use_one_thread() -> None:
    """Limits torch to one thread, and JAX too if it is not yet imported."""
    torch.set_num_threads(1)
    os.environ["NPROC"] = "1"  # for XLA's pools; with its flag for Eigen's threads four still work


def measure(quick: bool, threads: str, besides: tuple[str, ...] = ()) -> str:
    """The tables, followed by lines about missing peers and the machine."""
    effort = Effort(3, 0.001) if quick else Effort(15, 0.003)
    if quick:
        bounded = [(workload, SMALL_BAR) for workload in small()]
    elif threads == "all":
        bounded = [(workload, LARGE_BAR) for workload in large()]
    else:
        bounded = catalogue()
    left_out = (*left_out_of(quick, threads), *besides)
    rows = []
    with compiler_cache(), quiet(), page.progress(len(bounded)) as advance:
        if not quick:
            warm_up_compiler()
        for workload, bar in bounded:
            ready = prepare(workload, left_out)
            rows.append(tables.Row(workload, bar, ready, by_turns(ready.works, effort)))
            advance()
    parts = [
        tables.times(rows),
        tables.leaders(rows, OURS),
        tables.leaders(rows, OURS_COMPILED),
        tables.absences(rows, left_out),
        tables.first_calls(rows),
        f"{machine.describe()}{versions()}.",
    ]
    return "\n\n".join(part for part in parts if part)


def measure_real_size(threads: str, besides: tuple[str, ...], only: str) -> str:
    """The tables of the workloads of real size.

    On one thread it counts CPU seconds, which other programs on the machine disturb less.
    """
    timer = time.process_time if threads == "one" else time.perf_counter
    left_out = (EAGER, *besides)
    workloads = [workload for workload in real() if only.lower() in str(workload).lower()]
    rates = machine.rates(timer)
    rows = []
    with compiler_cache(), quiet(), page.progress(len(workloads)) as advance:
        warm_up_compiler()
        for workload in workloads:
            ready = prepare(workload, left_out)
            with compiler_cache():
                time_background(workload, ready)
            timings = by_turns(ready.works, REAL_EFFORT, timer)
            rows.append(tables.RealRow(workload, ready, timings, tables.peaks(ready), rates))
            advance()
    parts = [
        tables.real_times(rows),
        tables.peak_memory(rows),
        tables.absences(rows, tuple(besides)),
        tables.first_calls(rows, (*tables.REAL_PEERS, IN_BACKGROUND)),
        f"A product and a copy: {rates}. {machine.describe()}{versions()}.",
    ]
    return "\n\n".join(part for part in parts if part)


def left_out_of(quick: bool, threads: str) -> tuple[str, ...]:
    """The peers that compile for minutes: Inductor whole programs, eager JAX each operator."""
    if quick:
        return COMPILED, RAW_COMPILED, JIT, EAGER, OURS_COMPILED
    return (EAGER,) if threads == "all" else ()


@contextlib.contextmanager
def compiler_cache() -> Iterator[None]:
    """Hides what Inductor compiled in earlier runs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the specialists' hooks, which warn that a batch of data needs no gradient, and that
    a module has no layer for which to save gradients."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        warnings.filterwarnings("ignore", "Extension saving to grad_batch")
        yield


def versions() -> str:
    """The versions of the installed peers."""
    found = []
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"; {package} {metadata.version(package)}")
    return "".join(found)


if __name__ == "__main__":
    main()
