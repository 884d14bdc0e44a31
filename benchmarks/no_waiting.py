"""The first calls of a compiled function, which don't wait for the compiler.

``python -m benchmarks.no_waiting`` (some minutes) prints the table and writes it into
docs/compile-internals.md. What this process does is measured in its processor time, which other
processes change little; what another one does, in wall time.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchlayers
from benchmarks import machine, page
from benchmarks.transformer import Block
from benchmarks.workloads.__main__ import compiler_cache
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.inductor.compile_job import job_of, key_of
from torchlayers.compiler.passes import simplify

Gradient = Callable[..., Any]
# Width, heads, blocks, samples, words.
SIZES = {
    "64 wide, 2 blocks, 8 x 32 words": (64, 4, 2, 8, 32),
    "256 wide, 2 blocks, 32 x 128 words": (256, 4, 2, 32, 128),
}
FIRST_CALLS = 5


def gradient(
    width: int, heads: int, blocks: int, samples: int, words: int
) -> tuple[Callable[[float], Gradient], tuple[Any, ...]]:
    """A function that makes the gradient of a loss with a given factor, and its arguments."""
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
    parameters = {name: value.detach() for name, value in net.named_parameters()}

    def of(factor: float) -> Gradient:
        def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            result: Tensor = torch.func.functional_call(net, parameters, (x,))
            return factor * result.square().mean()

        return torchlayers.grad(loss)

    return of, (parameters, torch.randn(samples, words, width))


def cost(work: Callable[[], object], repeats: int = FIRST_CALLS) -> float:
    """The least processor time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def rows(of: Callable[[float], Gradient], arguments: tuple[Any, ...]) -> dict[str, float]:
    """Seconds."""
    f = of(1.0)
    f(*arguments)
    factors = iter(range(2, 100))

    def first_call(**settings: Any) -> Any:
        compiled = torchlayers.compile(of(float(next(factors))), **settings)
        compiled(*arguments)
        return compiled

    first_call(backend="replay")  # imports what is left
    eager = cost(lambda: f(*arguments))
    start = time.perf_counter()
    compiled = first_call(wait=False)
    replayed = cost(lambda: compiled(*arguments))
    compiled.wait()
    ready = time.perf_counter() - start
    captured = record(f, arguments, {}, guarded=True)
    graph = simplify(captured.graph)
    found = {
        "an eager call": eager,
        "the first call": cost(lambda: first_call(wait=False)),
        "of that, capture": cost(lambda: record(f, arguments, {}, guarded=True)),
        "of that, simplification": cost(lambda: simplify(captured.graph)),
        "of that, starting to compile": cost(lambda: key_of(job_of(graph, 1, None).encoded())),
        "a call until the code is ready": replayed,
        "until the code is ready": ready,
        "the first call of the code, which is compared": cost(lambda: compiled(*arguments), 1),
        "a later call": cost(lambda: compiled(*arguments)),
    }
    again = torchlayers.compile(compiled._func, wait=False)
    found["the first call in another process, with the code on disk"] = cost(
        lambda: again(*arguments), 1
    )
    start = time.perf_counter()
    first_call(wait=True)
    found["the first call with wait=True"] = time.perf_counter() - start
    return found


IN_SECONDS = ("until the code is ready", "the first call with wait=True")


def table(measured: dict[str, dict[str, float]]) -> str:
    """Milliseconds and eager calls; for work of other processes, seconds."""
    eager = {size: found["an eager call"] for size, found in measured.items()}
    lines = [
        [
            name,
            *(
                f"{found[name]:.1f} s"
                if name in IN_SECONDS
                else f"{1e3 * found[name]:.0f} ms, {found[name] / eager[size]:.1f}"
                for size, found in measured.items()
            ),
        ]
        for name in next(iter(measured.values()))
    ]
    return page.table(["time, and in eager calls", *measured], lines)


def measure(quick: bool) -> dict[str, str]:
    sizes = [*SIZES.items()][: 1 if quick else None]
    with compiler_cache():
        measured = {name: rows(*gradient(*size)) for name, size in sizes}
    return {"compile-internals.md": f"{table(measured)}\n\n{machine.describe()}."}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "no waiting")
