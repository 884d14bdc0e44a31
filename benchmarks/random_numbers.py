"""Keyed random numbers compared with torch's generator and jax.random, on one thread.

``python -m benchmarks.random_numbers`` prints the table and writes it into docs/benchmarks.md;
with ``--quick`` it is rough, and printed only. It needs JAX.
"""

from collections.abc import Callable
from time import process_time
from typing import Any

import torch

import torchlayers
from benchmarks import machine, page
from benchmarks.timing import Effort, Timing, by_turns
from torchlayers import random

OURS, TORCH, JAX = "torchlayers.random", "torch", "jax.random"
MANY = 1_000_000
KEYS, EACH = 10_000, 100

Calls = dict[str, Callable[[], Any]]


def numbers(name: str, torchs: Callable[..., Any], size: int) -> Calls:
    """``size`` numbers from one key."""
    import jax

    key, theirs = random.key(0), jax.random.key(0)
    draw = getattr(random, name)
    of_jax = jax.jit(lambda key: getattr(jax.random, name)(key, (size,)))
    return {
        OURS: lambda: draw(key, (size,)),
        TORCH: lambda: torchs(size),
        JAX: lambda: jax.block_until_ready(of_jax(theirs)),
    }


def of_many_keys(name: str, torchs: Callable[..., Any]) -> Calls:
    import jax

    keys, theirs = random.split(random.key(0), KEYS), jax.random.split(jax.random.key(0), KEYS)
    draw = torchlayers.vmap(lambda key: getattr(random, name)(key, (EACH,)))
    of_jax = jax.jit(jax.vmap(lambda key: getattr(jax.random, name)(key, (EACH,))))
    return {
        OURS: lambda: draw(keys),
        TORCH: lambda: torchs(KEYS, EACH),
        JAX: lambda: jax.block_until_ready(of_jax(theirs)),
    }


def splits() -> Calls:
    import jax

    key, theirs = random.key(0), jax.random.key(0)
    of_jax = jax.jit(lambda key: jax.random.split(key, KEYS))
    return {
        OURS: lambda: random.split(key, KEYS),
        TORCH: lambda: torch.randint(2**63 - 1, (KEYS,)),
        JAX: lambda: jax.block_until_ready(of_jax(theirs)),
    }


def doubles(name: str, torchs: Callable[..., Any]) -> Calls:
    key, draw = random.key(0), getattr(random, name)
    return {
        OURS: lambda: draw(key, (MANY,), torch.float64),
        TORCH: lambda: torchs(MANY, dtype=torch.float64),
    }


def gammas() -> Calls:
    import jax

    key, theirs = random.key(0), jax.random.key(0)
    alpha = torch.full((100_000,), 2.5)
    of_jax = jax.jit(lambda key: jax.random.gamma(key, 2.5, (100_000,)))
    return {
        OURS: lambda: random.gamma(key, alpha),
        TORCH: lambda: torch._standard_gamma(alpha),
        JAX: lambda: jax.block_until_ready(of_jax(theirs)),
    }


def dropout(randomness: str, **key: Any) -> Callable[[], Any]:
    x = torch.ones(64, 1000)
    f = torchlayers.vmap(torch.nn.functional.dropout, randomness=randomness, **key)
    return lambda: f(x)


def dropouts() -> Calls:
    return {
        OURS: dropout("keyed", key=random.key(0)),
        TORCH: dropout("different"),
    }


WORK: dict[str, Callable[[], Calls]] = {
    "a uniform number": lambda: numbers("uniform", torch.rand, 1),
    "10^6 uniform numbers": lambda: numbers("uniform", torch.rand, MANY),
    "10^6 normal numbers": lambda: numbers("normal", torch.randn, MANY),
    "10^6 uniform numbers, float64": lambda: doubles("uniform", torch.rand),
    "10^6 normal numbers, float64": lambda: doubles("normal", torch.randn),
    "100 uniform numbers of each of 10^4 keys": lambda: of_many_keys("uniform", torch.rand),
    "100 normal numbers of each of 10^4 keys": lambda: of_many_keys("normal", torch.randn),
    "10^4 keys by split": splits,
    "10^5 gamma numbers": gammas,
    "dropout on 64 samples of 1000": dropouts,
}


def row(name: str, timings: dict[str, Timing]) -> list[str]:
    def ratio(peer: str) -> str:
        return f"{timings[OURS].median / timings[peer].median:.2f}" if peer in timings else ""

    shown = [
        str(timings[peer].scaled(1e6)) if peer in timings else "" for peer in (OURS, TORCH, JAX)
    ]
    return [name, *shown, ratio(TORCH), ratio(JAX)]


def measure(quick: bool) -> dict[str, str]:
    import jax

    effort = Effort(5, 0.002) if quick else Effort(51, 0.02)
    rows = []
    for name, calls in WORK.items():
        works = calls()
        for work in works.values():
            work()
        rows.append(row(name, by_turns(works, effort, process_time)))
    header = ["", OURS, TORCH, JAX, "of torch", "of JAX"]
    versions = f"{machine.describe()}; jax {jax.__version__}."
    return {"benchmarks.md": f"{page.table(header, rows)}\n\n{versions}"}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "random numbers")
