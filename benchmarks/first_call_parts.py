"""Where the processor time of a first call goes that waits for Inductor's code (``wait=True``).

``python -m benchmarks.first_call_parts`` prints the table and writes it into
docs/compile-internals.md. The times are CPU seconds of this process and, for the C++ compiler, of
its processes.
"""

import resource
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torchlayers
from benchmarks import machine, page
from benchmarks.workloads import torch_operators
from benchmarks.workloads.__main__ import compiler_cache, quiet
from benchmarks.workloads.peers import warm_up_compiler
from benchmarks.workloads.real_size import resnet_per_sample, transformer_gradient
from benchmarks.workloads.workload import Workload

WHOLE, REST = "the first call", "the rest: two runs that are compared, guards, loading"
IN_INDUCTOR = "Inductor: decomposition, its passes, lowering"
# Each part: its name, and the functions that do its work. A part's time is its functions' own: less
# that of other parts' inside.
CAPTURE, SIMPLIFY = "capture", "simplification"
SCHEDULE, GENERATE = "Inductor: fusion of kernels", "Inductor: writing C++"
COMPILER = "the C++ compiler"
PARTS = (CAPTURE, SIMPLIFY, IN_INDUCTOR, SCHEDULE, GENERATE, COMPILER)


def seconds_of_process() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Parts:
    """Seconds by part; a part that begins inside another interrupts it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    def within(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._open.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        return call

    def _switch(self) -> None:
        now = seconds_of_process()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def parts_of_first_call(workload: Workload) -> dict[str, float]:
    from torch._inductor import scheduler

    from torchlayers.compiler.inductor import compile as inductor
    from torchlayers.compiler.inductor import kernels
    from torchlayers.compiler.runtime import build

    places: list[tuple[Any, str, str]] = [
        (build, "record", CAPTURE),
        (build, "simplify_captured", SIMPLIFY),
        (inductor, "simplify", SIMPLIFY),
        (inductor, "_lower_to_code", IN_INDUCTOR),
        (scheduler.Scheduler, "__init__", SCHEDULE),
        (scheduler.Scheduler, "codegen", GENERATE),
        (kernels, "compile_together", COMPILER),
    ]
    parts = Parts()
    function = torchlayers.compile(workload.program(torchlayers, torch_operators), wait=True)
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for (owner, name, original), (_, _, part) in zip(originals, places, strict=True):
        setattr(owner, name, parts.within(part, original))
    try:
        parts.within(REST, function)(*workload.arguments)
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
    return parts.seconds


def measure(quick: bool) -> dict[str, str]:
    from torch._inductor import config

    workloads = [transformer_gradient(128, 3, 8), resnet_per_sample(16)][: 1 if quick else None]
    # One file of kernels at a time, compiled by a process of our own.
    with compiler_cache(), quiet(), config.patch(compile_threads=1):
        warm_up_compiler()
        measured = [parts_of_first_call(workload) for workload in workloads]
    lines = []
    for part in (*PARTS, REST):
        lines.append([part, *(shown(seconds[part], seconds) for seconds in measured)])
    lines.append([WHOLE, *(shown(sum(seconds.values()), seconds) for seconds in measured)])
    text = page.table(["CPU seconds, and share", *map(str, workloads)], lines)
    return {"compile-internals.md": f"{text}\n\n{machine.describe()}."}


def shown(seconds: float, of: dict[str, float]) -> str:
    return f"{seconds:.2f}, {seconds / sum(of.values()):.0%}"


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "first call parts")
