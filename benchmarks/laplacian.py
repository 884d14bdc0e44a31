"""Laplacians and biharmonics of a network: time and peak memory compared with nested derivatives.

``python -m benchmarks.laplacian`` writes two tables into docs/laplacian.md; with ``--quick`` it is
rough, of small batches, and printed only. Where jax and folx are installed, the compiled Laplacian
is compared with folx's too.

Bars: half of the time of the trace of a Hessian and of nested jvps, 0.7 of their peak memory; for
the biharmonic by random directions a fifth of the time of nested jvps along the same directions;
compiled, the time of folx under jax.jit.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.peak import peak_bytes
from benchmarks.timing import Work, check_same, least_seconds

OURS, HESSIAN, NESTED, FOLX = "torchlayers", "trace of hessian", "nested jvp", "folx"
WIDTHS = [768, 768, 512, 512, 1]
SIZES = [(3, 1), (3, 32), (3, 1024), (50, 1), (50, 32), (50, 1024)]
COMPILED = [(3, 1), (3, 32), (3, 1024), (50, 1), (50, 32)]
DIRECTIONS = 4

Function = Callable[[Tensor], Tensor]


def module(inputs: int, widths: list[int]) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in zip([inputs, *widths], widths, strict=False):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).requires_grad_(False)


def network(inputs: int, widths: list[int]) -> Function:
    """A tanh network with one output, a number."""
    model = module(inputs, widths)

    def function(x: Tensor) -> Tensor:
        output: Tensor = model(x)
        return output.squeeze(-1)

    return function


def by_hessian(function: Function) -> Function:
    return lambda x: torch.func.hessian(function)(x).diagonal().sum()


def along(function: Function, direction: Tensor, order: int) -> Function:
    """The derivative of an order along a direction, by nested jvps."""
    for _ in range(order):
        function = _pushed(function, direction)
    return function


def _pushed(function: Function, direction: Tensor) -> Function:
    return lambda x: torch.func.jvp(function, (x,), (direction,))[1]


def by_nested_jvps(function: Function) -> Function:
    def laplacian(x: Tensor) -> Tensor:
        axes = torch.eye(len(x), dtype=x.dtype)
        seconds: Tensor = torch.func.vmap(lambda axis: along(function, axis, 2)(x))(axes)
        return seconds.sum()

    return laplacian


def laplacians(function: Function) -> dict[str, Function]:
    """The Laplacian of each sample of a batch, by each peer."""
    return {
        OURS: tl.vmap(tl.laplacian(function)),
        HESSIAN: torch.func.vmap(by_hessian(function)),
        NESTED: torch.func.vmap(by_nested_jvps(function)),
    }


def random_biharmonics(function: Function, directions: Tensor) -> dict[str, Function]:
    """The mean of fourth derivatives along the directions, divided by 3, at each sample."""

    def nested(x: Tensor) -> Tensor:
        fourths: Tensor = torch.func.vmap(lambda v: along(function, v, 4)(x))(directions)
        return fourths.mean() / 3

    def ours(x: Tensor) -> Tensor:
        fourths: Tensor = tl.directional_derivatives(function, x, directions, 4)[-1]
        return fourths.mean() / 3

    return {OURS: tl.vmap(ours), NESTED: torch.func.vmap(nested)}


def exact_biharmonics(function: Function) -> dict[str, Function]:
    return {
        OURS: tl.vmap(tl.biharmonic(function)),
        NESTED: torch.func.vmap(by_nested_jvps(by_nested_jvps(function))),
    }


def works(peers: dict[str, Function], inputs: int, batch: int) -> dict[str, Work]:
    x = torch.randn(batch, inputs, generator=torch.Generator().manual_seed(1))
    return {name: (lambda function=function: function(x)) for name, function in peers.items()}


def compiled(inputs: int, batch: int) -> dict[str, Work]:
    """Ours by torchlayers.compile, the Hessian's trace by torch.compile, folx by jax.jit."""
    peers = laplacians(network(inputs, WIDTHS))
    functions = {OURS: tl.compile(peers[OURS]), HESSIAN: torch.compile(peers[HESSIAN])}
    if importlib.util.find_spec("jax") and importlib.util.find_spec("folx"):
        functions[FOLX] = by_folx(module(inputs, WIDTHS))
    return works(functions, inputs, batch)


def by_folx(model: nn.Sequential) -> Function:
    """The Laplacian of the same network at each sample, by folx and XLA, on one thread."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    import folx
    import jax

    layers: Any = [layer for layer in model if isinstance(layer, nn.Linear)]
    weights = [[jax.numpy.asarray(p.numpy()) for p in layer.parameters()] for layer in layers]

    def function(x: Any) -> Any:
        for weight, bias in weights[:-1]:
            x = jax.numpy.tanh(weight @ x + bias)
        weight, bias = weights[-1]
        return (weight @ x + bias).squeeze(-1)

    call = jax.jit(jax.vmap(lambda x: folx.forward_laplacian(function)(x).laplacian))
    return lambda x: torch.from_dlpack(call(jax.numpy.from_dlpack(x)).block_until_ready())


def row(what: str, of: dict[str, Work], repetitions: int) -> list[str]:
    """Milliseconds and megabytes of each peer, and ratios: theirs to ours, ours to theirs."""
    check_same(of)
    seconds = {name: least_seconds(work, repetitions) for name, work in of.items()}
    # What jax allocates, torch does not see.
    peaks = {name: peak_bytes(work) for name, work in of.items() if name != FOLX}

    def cell(name: str, bar: float) -> list[str]:
        if name not in of:
            return ["", ""] if name == FOLX else ["", "", ""]
        ratio = seconds[name] / seconds[OURS]
        times = f"{ratio:.2f}" if ratio >= bar else f"{ratio:.2f}, missed"
        milliseconds = f"{seconds[name] * 1e3:.2f}"
        if name == FOLX:
            return [milliseconds, times]
        share = peaks[OURS] / peaks[name]
        return [milliseconds, times, f"{share:.2f}" if share <= 0.7 else f"{share:.2f}, missed"]

    ours = [f"{seconds[OURS] * 1e3:.2f}", f"{peaks[OURS] / 1e6:.1f}"]
    if what.startswith("compiled"):
        return [what, *ours, *cell(HESSIAN, 2), *cell(FOLX, 1)]
    bar = 5 if "random" in what else 2
    return [what, *ours, *cell(HESSIAN, bar), *cell(NESTED, bar)]


HEADER = [
    *("what", f"{OURS}, ms", f"{OURS}, MB", f"{HESSIAN}, ms", "of our time", "our memory"),
    *(f"{NESTED}, ms", "of our time", "our memory"),
]
HEADER_COMPILED = [*HEADER[:6], f"{FOLX}, ms", "of our time"]


def measure(quick: bool) -> dict[str, str]:
    rows: list[list[str]] = []

    def add(*arguments: Any) -> None:
        rows.append(row(*arguments))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)

    for inputs, batch in SIZES[:2] if quick else SIZES:
        elements = inputs * batch
        repetitions = 1 if elements > 20_000 else 3 if quick or elements > 1000 else 15
        of = works(laplacians(network(inputs, WIDTHS)), inputs, batch)
        add(f"Laplacian, {inputs} inputs, batch {batch}", of, repetitions)
    function = network(5, WIDTHS)
    directions = torch.randn(DIRECTIONS, 5, generator=torch.Generator().manual_seed(2))
    for batch in (1, 32):
        of = works(random_biharmonics(function, directions), 5, batch)
        add(f"random biharmonic, 5 inputs, {DIRECTIONS} directions, batch {batch}", of, 5)
    add("biharmonic, 5 inputs, batch 8", works(exact_biharmonics(function), 5, 8), 3)
    eager, rows[:] = page.table(HEADER, rows), []
    for inputs, batch in COMPILED[:1] if quick else COMPILED:
        of = compiled(inputs, batch)
        add(f"compiled, {inputs} inputs, batch {batch}", of, 5 if inputs * batch > 1000 else 31)
    notes = (
        "CPU seconds, the least of several calls, on one thread, in float32; peak memory of "
        f"torch's allocator. {machine.describe()}; `python -m benchmarks.laplacian`."
    )
    return {"laplacian.md": f"{eager}\n\n{page.table(HEADER_COMPILED, rows)}\n\n{notes}"}


def main() -> Any:
    page.run(__doc__.splitlines()[0] if __doc__ else "", measure, "laplacian")


if __name__ == "__main__":
    main()
