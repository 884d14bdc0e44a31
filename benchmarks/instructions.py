"""Instructions, atomic operations and cache misses of operators and calls, beside torch.func.

``python -m benchmarks.instructions`` prints the table and writes it into docs/benchmarks.md. It
needs valgrind, its headers and a C compiler. Unlike times, counts hardly differ by machine or from
run to run. An operator's counts are the difference between loops of 60 and of 10 operators. It also
prints what changed against the page by 1 % or more; ``python -m benchmarks.instruction_history``
says which commits came between the page's earlier tables.
"""

import ctypes
import gc
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import page
from benchmarks.chains import FUNC, OURS
from benchmarks.comparisons import LIBRARIES
from benchmarks.executed import Executed
from benchmarks.instruction_history import between_markers, changes, counts_in

SWITCH = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char* name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
LONG, SHORT = 60, 10
REPEATS = 3
HEADER = ["what", "peer", "instructions", "atomic operations", "L1 misses"]

Programs = dict[str, tuple[Callable[[], Any], ...]]


def repeated(operator: Callable[..., Tensor], times: int) -> Callable[..., Tensor]:
    def func(*args: Tensor) -> Tensor:
        for _ in range(times):
            out = operator(*args)
        return out

    return func


def programs(tl: Any) -> Programs:
    """The programs to count: loops of two lengths, or a call."""
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    number = y[0, 0]

    def loops(operator: Callable[..., Tensor], run: Callable[[Any], Any]) -> Any:
        long, short = (repeated(operator, times) for times in (LONG, SHORT))
        return lambda: run(long), lambda: run(short)

    def total(loop: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args: loop(*args).sum()

    return {
        "`x * y`, no transform": loops(torch.mul, lambda f: f(x, y)),
        "`x * y`, vmap": loops(torch.mul, lambda f: tl.vmap(f)(x, y)),
        "`x.sum(0)`, vmap": loops(lambda x: x.sum(0), lambda f: tl.vmap(f)(x)),
        "`x * y`, grad": loops(torch.mul, lambda f: tl.grad(total(f))(x, y)),
        "`x * y`, jvp": loops(torch.mul, lambda f: tl.jvp(lambda a: f(a, y), (x,), (x,))),
        "`x * y`, vmap(grad)": loops(torch.mul, lambda f: tl.vmap(tl.grad(total(f)))(x, y)),
        "a call, vmap": (lambda: tl.vmap(torch.sin)(x),),
        "a call, grad": (lambda: tl.grad(torch.sin)(number),),
        "a call, jvp": (lambda: tl.jvp(torch.sin, (x,), (x,)),),
        "a call, vjp": (lambda: tl.vjp(torch.sin, x)[1](x),),
    }


def run_counted(peer: str, switch: str) -> None:
    """Runs in valgrind's process: warms up each program, then runs it with counting on."""
    torch.set_num_threads(1)
    gc.disable()
    library = ctypes.CDLL(switch)
    for name, runs in programs(LIBRARIES[peer]).items():
        for i, run in enumerate(runs):
            for _ in range(3):
                run()
            for _ in range(REPEATS):
                library.start()
                run()
                library.stop(f"{name}#{i}".encode())


def counted(peer: str, folder: Path) -> dict[str, Counter[str]]:
    """The counts of each program, the minimum of its repeats."""
    source, switch, out = folder / "switch.c", folder / "switch.so", folder / f"{peer}.out"
    source.write_text(SWITCH)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", switch], check=True)
    subprocess.run(
        [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--cache-sim=yes"),
            *("--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"),
            *(f"--callgrind-out-file={out}", sys.executable, "-m", "benchmarks.instructions"),
            *("--count", peer, str(switch)),
        ],
        check=True,
        capture_output=True,
    )
    executed = Executed()
    least: dict[str, Counter[str]] = {}
    for dump in folder.glob(f"{out.name}.*"):
        name, counts = executed.read(dump)
        if name and (name not in least or counts["Ir"] < least[name]["Ir"]):
            least[name] = counts
    return least


def measure(_: bool) -> dict[str, str]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        counts = {peer: counted(peer, Path(folder)) for peer in (FUNC, OURS)}
    for name, runs in programs(torch.func).items():
        for peer, of in counts.items():
            total = of[f"{name}#0"].copy()
            if len(runs) == 2:
                total.subtract(of[f"{name}#1"])
            share = LONG - SHORT if len(runs) == 2 else 1
            misses = total["I1mr"] + total["D1mr"] + total["D1mw"]
            rows.append(
                [name, peer, *(f"{n / share:,.0f}" for n in (total["Ir"], total["atomic"], misses))]
            )
    text = page.table(HEADER, rows)
    written = (page.DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for change in changes(counts_in(written), counts_in(between_markers(text)), OURS):
        print(f"since the page: {change}")
    return {"benchmarks.md": text}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        run_counted(*sys.argv[2:])
    else:
        page.run(__doc__ or "", measure, "instructions")
