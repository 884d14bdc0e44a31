"""Control flow compared with what it replaces: loops in Python, JAX's lax.scan, torch.where.

Bars: a scan of 1,000 steps under vmap(grad) takes at most 1.1 of the unrolled loop, and at most as
long as jax.lax.scan without jit; a cond that gathers at most 0.6 of one that selects, where one
branch is expensive and rarely taken. Compiled, with the loop captured as one operator, the scan
takes at most 0.9 of JAX with jit, at any length; compiled for symbolic sizes, at most 1.3 of the
time for a fixed size.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.timing import Effort, Timing, by_turns, check_same

STEPS, BATCH, WIDTH = 1000, 8, 4
LENGTHS = (10, 100, 1_000, 10_000)
SAMPLES, SIDE, DEPTH, RARELY = 256, 48, 12, 16  # one of 16 samples takes the expensive branch

OURS, LOOP = "scan", "loop in Python"
JAX_EAGER, JAX_JIT = "lax.scan, no jit", "lax.scan, jit"
COMPILED, REPLAYED, DYNAMIC = "compile", "compile, replay", "compile, dynamic"
SELECT, GATHER = "select", "gather"

Works = dict[str, Callable[[], Any]]


def tensors(steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, initial states and inputs of a recurrent network."""
    torch.manual_seed(0)
    weights = torch.randn(WIDTH, WIDTH) / WIDTH
    return weights, torch.zeros(BATCH, WIDTH), torch.randn(BATCH, steps, WIDTH)


def compiled(steps: int) -> Works:
    """Compiled scans of the given number of steps."""
    weights, first, xs = tensors(steps)

    def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = (weights @ state + x).tanh()
        return state, state

    each = tl.vmap(tl.grad(lambda state, xs: tl.scan(step, state, xs)[1].square().sum()))
    ours = {COMPILED: tl.compile(each, wait=True), REPLAYED: tl.compile(each, backend="replay")}
    ours[DYNAMIC] = tl.compile(each, dynamic=True, wait=True)
    for samples in (BATCH - 1, BATCH - 2):  # the second size makes the sizes symbolic
        ours[DYNAMIC](first[:samples], xs[:samples])
    works: Works = {name: lambda f=f: f(first, xs) for name, f in ours.items()}
    theirs = jaxs(weights, first, xs)
    return works | {name: theirs[name] for name in theirs if name == JAX_JIT}


def scans() -> Works:
    """The gradient of a recurrent network's outputs by its initial state, for each sample."""
    weights, first, xs = tensors(STEPS)

    def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = (weights @ state + x).tanh()
        return state, state

    def by_scan(state: Tensor, xs: Tensor) -> Tensor:
        return tl.scan(step, state, xs)[1].square().sum()

    def by_loop(state: Tensor, xs: Tensor) -> Tensor:
        ys = []
        for x in xs:
            state, y = step(state, x)
            ys.append(y)
        return torch.stack(ys).square().sum()

    works: Works = {
        name: lambda f=f: tl.vmap(tl.grad(f))(first, xs)
        for name, f in ((OURS, by_scan), (LOOP, by_loop))
    }
    return works | jaxs(weights, first, xs)


def jaxs(weights: Tensor, first: Tensor, xs: Tensor) -> Works:
    if importlib.util.find_spec("jax") is None:
        return {}
    import jax
    from jax import lax, numpy

    w, state, inputs = (numpy.asarray(tensor.numpy()) for tensor in (weights, first, xs))

    def step(state: Any, x: Any) -> Any:
        state = numpy.tanh(w @ state + x)
        return state, state

    each = jax.vmap(jax.grad(lambda state, xs: (lax.scan(step, state, xs)[1] ** 2).sum()))
    jitted = jax.jit(each)

    return {
        name: lambda f=f: torch.from_dlpack(f(state, inputs).block_until_ready())
        for name, f in ((JAX_EAGER, each), (JAX_JIT, jitted))
    }


def conds() -> Works:
    """The gradient of a function with one expensive branch, for each sample."""
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, SIDE, SIDE)
    x[:, 0, 0] = -1
    x[::RARELY, 0, 0] = 1

    def dear(x: Tensor) -> Tensor:
        y = x
        for _ in range(DEPTH):
            y = (y @ x / SIDE).tanh() + x
        return y.square().sum()

    def f(batched: str) -> Callable[[Tensor], Tensor]:
        return lambda x: tl.cond(x[0, 0] > 0, dear, lambda x: x.square().sum(), x, batched=batched)

    return {way: lambda way=way: tl.vmap(tl.grad(f(way)))(x) for way in (GATHER, SELECT)}


def measured(works: Works, effort: Effort) -> dict[str, Timing]:
    check_same(works)
    return {name: timing.scaled(1e3) for name, timing in by_turns(works, effort).items()}


def row(what: str, times: dict[str, Timing], ours: str, other: str, bar: float) -> list[str]:
    ratio = times[ours].median / times[other].median
    missed = "" if ratio <= bar else ", missed"
    return [
        what,
        ours,
        str(times[ours]),
        other,
        str(times[other]),
        f"{ratio:.2f}{missed}",
        f"{bar}",
    ]


def measure(quick: bool) -> dict[str, str]:
    """The table, followed by a line about the machine."""
    effort = Effort(rounds=3, block=0.02) if quick else Effort(rounds=15, block=0.1)
    scanned, chosen = measured(scans(), effort), measured(conds(), effort)
    what = f"vmap(grad) of {STEPS:,} steps, {BATCH} samples"
    rows = [row(what, scanned, OURS, LOOP, 1.1)]
    if JAX_EAGER in scanned:
        rows.append(row(what, scanned, OURS, JAX_EAGER, 1.0))
        rows.append([*row(what, scanned, OURS, JAX_JIT, 1.0)[:5], *_beside(scanned)])
    for length in LENGTHS:
        found = measured(compiled(length), effort)
        what = f"vmap(grad) of {length:,} steps, {BATCH} samples"
        if JAX_JIT in found:
            rows.append(row(what, found, COMPILED, JAX_JIT, 0.9))
        rows.append([*row(what, found, COMPILED, REPLAYED, 1.0)[:6], ""])
        rows.append(row(what, found, DYNAMIC, COMPILED, 1.3))
    rows.append(
        row(
            f"vmap(grad) of cond, 1 sample of {RARELY} on the dear side",
            chosen,
            GATHER,
            SELECT,
            0.6,
        )
    )
    header = ("ms", "ours", "", "beside", "", "ratio", "bar")
    return {"benchmarks.md": f"{page.table(header, rows)}\n\n{machine.describe()}."}


def _beside(times: dict[str, Timing]) -> list[str]:
    return [f"{times[OURS].median / times[JAX_JIT].median:.2f}", ""]


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "control_flow")
