"""Effects of each patch of Inductor (compiler/inductor/patches.py): CPU time without it.

``python -m benchmarks.inductor_patches`` (twenty minutes) prints, as multiples of the time with all
patches: compiling three workloads with an empty cache, and calling what was compiled.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from unittest import mock

import torch

import torchlayers
from benchmarks import page
from benchmarks.first_call_parts import seconds_of_process
from benchmarks.timing import Effort, by_turns
from benchmarks.workloads import losses, physics, torch_operators
from benchmarks.workloads.__main__ import compiler_cache
from benchmarks.workloads.peers import warm_up_compiler
from benchmarks.workloads.workload import Workload
from torchlayers.compiler.inductor import patches
from torchlayers.compiler.inductor.patches import Patch

ROUNDS = 3
ALL = "all patches"
# Patches of one computation are left out together: by a part of their targets' names.
GROUPS = {
    "kernels share files": "cpp_pybinding",
    "no simplification": "sizevars",
    "no code for empty tails": "SchedulerNode",
    "table filled once": "dtype_propagation",
    "tanh": "tanh",
}


@contextlib.contextmanager
def without(part: str | None) -> Iterator[None]:
    """Compiles without the patches whose targets have this part in their names."""
    make = patches.patches

    def remaining(sources: list[patches.kernels.Source]) -> list[Patch]:
        return [patch for patch in make(sources) if part is None or part not in patch.target]

    with mock.patch.object(patches, "patches", remaining):
        yield


def compiled(workload: Workload, part: str | None) -> tuple[float, Callable[..., object]]:
    """The CPU seconds of a first call with an empty cache, and the compiled function."""
    func = workload.program(torchlayers, torch_operators)
    with compiler_cache(), without(part):
        run = torchlayers.compile(func, wait=True)
        start = seconds_of_process()
        run(*workload.arguments)
        return seconds_of_process() - start, run


def row(workload: Workload) -> list[str]:
    """The cells of a workload: for each group, compiling and calling without it."""
    groups = {ALL: None, **GROUPS}
    seconds: dict[str, list[float]] = {group: [] for group in groups}
    runs = {}
    for _ in range(ROUNDS):
        for group, part in groups.items():
            taken, runs[group] = compiled(workload, part)
            seconds[group].append(taken)
    works = {group: lambda run=run: run(*workload.arguments) for group, run in runs.items()}
    times = by_turns(works, Effort(15, 0.05), time.process_time)
    return [
        str(workload),
        *(
            f"{min(seconds[group]) / min(seconds[ALL]):.2f}, "
            f"{times[group].median / times[ALL].median:.2f}"
            for group in GROUPS
        ),
    ]


def main() -> None:
    from torch._inductor import config

    torch.set_num_threads(1)
    workloads = [
        losses.cnn_gradients(8),
        losses.transformer_gradients(width=16, blocks=1, length=8, batch=4),
        physics.laplacian(width=64, points=1024),
    ]
    with config.patch(compile_threads=1, fx_graph_cache=False):
        warm_up_compiler()
        rows = [row(workload) for workload in workloads]
    print(page.table(["compiling, calling without", *GROUPS], rows))


if __name__ == "__main__":
    main()
