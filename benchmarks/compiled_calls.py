"""The cost of a call of a compiled function, compared with jax.jit, torch.compile and eager mode.

python -m benchmarks.compiled_calls measures the table of docs/benchmarks.md, and writes it there.
It needs JAX. The second table is the cost of guards.
"""

import warnings
from collections.abc import Callable
from time import process_time
from typing import Any

import torch
from torch import Tensor

import torchlayers
from benchmarks import machine, page
from benchmarks.timing import Effort, Timing, by_turns

EAGER, COMPILED, JIT = "eager", "torch.compile", "jax.jit"
INDUCTOR, REPLAY = "torchlayers.compile", "torchlayers.compile, replay"
PEERS = (EAGER, JIT, COMPILED, REPLAY, INDUCTOR)
UNGUARDED, GUARDED = "guards=False", "guards=True"
OUTSIDE, INSIDE = "read outside", "read inside"

Tree = dict[str, Any]


def one(x: Any) -> Any:
    return x + 1


def each(tree: Tree) -> Tree:
    return {name: value + 1 for name, value in tree.items()}


def total(tree: Tree) -> Any:
    return sum(tree.values())


TWENTY = {str(i): torch.ones(4) for i in range(20)}
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "`x + 1` on 4 elements": (one, torch.ones(4)),
    "the sum of a dict of 20 such tensors": (total, TWENTY),
    "`x + 1` for each of them": (each, TWENTY),
}

LAYERS = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(64))).requires_grad_(False)
READERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "`x + 1` on 4 elements": (one, torch.ones(4)),
    "a module of 64 layers, `Linear(4, 4)`": (LAYERS, torch.ones(4)),
}


def split(x: Tensor) -> Tensor:
    return x.sin() if x.sum() > 0 else x.cos()


def read(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.sum() > 0


def with_split() -> dict[str, Callable[[], Any]]:
    """Calls that read a value inside, and outside of the compiled function."""
    x = torch.ones(4)
    inside, outside = (torchlayers.compile(f, wait=True) for f in (split, read))

    def choose() -> Tensor:
        result, is_positive = outside(x)
        return result if is_positive else x

    for _ in range(3):
        torch.testing.assert_close(inside(x), choose())
    return {OUTSIDE: choose, INSIDE: lambda: inside(x)}


def peers(f: Callable[[Any], Any], argument: Any) -> dict[str, Callable[[], Any]]:
    """Calls of the function by each peer, already compiled."""
    import jax
    import jax.numpy as jnp
    from torch.utils import _pytree as pytree

    theirs = pytree.tree_map(lambda x: jnp.asarray(x.numpy()), argument)
    jit = jax.jit(f)
    compiled = torch.compile(f, fullgraph=True)
    inductor, replay = (
        torchlayers.compile(f, backend=name, wait=True) for name in ("inductor", "replay")
    )
    calls = {
        EAGER: lambda: f(argument),
        JIT: lambda: jax.block_until_ready(jit(theirs)),
        COMPILED: lambda: compiled(argument),
        REPLAY: lambda: replay(argument),
        INDUCTOR: lambda: inductor(argument),
    }
    expected = f(argument)
    for name, call in calls.items():
        for _ in range(3):
            given = call()
        if name == JIT:
            given = pytree.tree_map(lambda x: torch.from_numpy(x.__array__().copy()), given)
        torch.testing.assert_close(given, expected)
    return calls


def with_guards(f: Callable[[Any], Any], argument: Any) -> dict[str, Callable[[], Any]]:
    """Calls with and without guards, already compiled."""

    def ready(guards: bool) -> Callable[[], Any]:
        compiled = torchlayers.compile(f, guards=guards, wait=True)
        for _ in range(3):
            torch.testing.assert_close(compiled(argument), f(argument))
        return lambda: compiled(argument)

    return {UNGUARDED: ready(False), GUARDED: ready(True)}


def row(name: str, timings: dict[str, Timing]) -> list[str]:
    medians = {peer: timing.median for peer, timing in timings.items()}
    return [
        name,
        *(str(timings[peer].scaled(1e6)) for peer in PEERS),
        *(f"{medians[INDUCTOR] / medians[peer]:.2f}" for peer in (JIT, COMPILED)),
    ]


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(rounds=11 if quick else 301, block=0.001)
    rows, guarded = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (f, argument) in FUNCTIONS.items():
            torch._dynamo.reset()
            rows.append(row(name, by_turns(peers(f, argument), effort, process_time)))
        for name, (f, argument) in READERS.items():
            timings = by_turns(with_guards(f, argument), effort, process_time)
            without, with_them = timings[UNGUARDED].scaled(1e6), timings[GUARDED].scaled(1e6)
            ratio = f"{with_them.median / without.median:.2f}"
            guarded.append([name, str(without), str(with_them), ratio])
        timings = by_turns(with_split(), effort, process_time)
    outside, inside = timings[OUTSIDE].scaled(1e6), timings[INSIDE].scaled(1e6)
    of_split = [
        "`x.sin() if x.sum() > 0 else x.cos()`",
        str(outside),
        str(inside),
        f"{inside.median - outside.median:.2f}",
    ]
    tables = [
        page.table(["a call", *PEERS, "of jax.jit", "of torch.compile"], rows),
        page.table(["a call", UNGUARDED, GUARDED, "ratio"], guarded),
        page.table(["a call", OUTSIDE, INSIDE, "difference"], [of_split]),
    ]
    return {"benchmarks.md": "\n\n".join([*tables, f"{machine.describe()}."])}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "compiled calls")
