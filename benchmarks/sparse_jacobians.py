"""Sparse Jacobians and Hessians, beside dense ones in chunks and asdex (JAX) under jit.

``python -m benchmarks.sparse_jacobians`` prints four tables: what is done once (detection and
colouring, in CPU seconds), the CPU time of a call on one thread, the memory of a call at three
sizes, and colourings of larger patterns. Where the dense matrix does not fit, a chunk of it is
timed, and the time for all chunks is given with a ~. Without asdex, its columns are empty.
"""

import importlib
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks.peak import peak_bytes
from benchmarks.timing import Effort, Timing, Work, by_turns

CHUNK = 100  # columns of a dense matrix at a time
MOST_DENSE = 2 * 10**8  # elements of a dense matrix that fits
COO, VALUES, COMPILED, DENSE, ASDEX = "coo", "values", "compiled", "dense chunks", "asdex jit"


class Problem(NamedTuple):
    """A function of an array of `size` numbers; its second argument is torch or jax.numpy."""

    name: str
    size: int
    func: Callable[[Any, Any], Any]
    transform: str = "jacfwd"

    @property
    def is_hessian(self) -> bool:
        return self.transform == "hessian"

    def point(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.size, generator=generator, dtype=torch.float64)


def tridiagonal(x: Any, np: Any) -> Any:
    """Broyden's tridiagonal function."""
    inner = (3 - 2 * x) * x + 1
    left = np.concatenate([x[:1] * 0, x[:-1]])
    right = np.concatenate([x[1:], x[-1:] * 0])
    return inner - left - 2 * right


def reaction_diffusion(x: Any, np: Any) -> Any:
    """The 5-point stencil of a Laplacian on a square grid, and a reaction at each point."""
    side = int(x.shape[0] ** 0.5)
    u = x.reshape(side, side)
    row, column = u[:1] * 0, u[:, :1] * 0
    vertical = np.concatenate([row, u[:-1]]) + np.concatenate([u[1:], row])
    horizontal = np.concatenate([column, u[:, :-1]], 1) + np.concatenate([u[:, 1:], column], 1)
    return (vertical + horizontal - 4 * u + u * np.exp(-u * u)).reshape(-1)


def surface(x: Any, np: Any) -> Any:
    """The energy of a surface on a square grid, whose Hessian has the 5-point stencil."""
    side = int(x.shape[0] ** 0.5)
    u = x.reshape(side, side)
    tension = ((u[1:] - u[:-1]) ** 2).sum() + ((u[:, 1:] - u[:, :-1]) ** 2).sum()
    return tension + (u**4).sum()


PROBLEMS = (
    Problem("tridiagonal", 10_000, tridiagonal),
    Problem("5-point stencil", 316**2, reaction_diffusion),
    Problem("5-point Hessian", 316**2, surface, "hessian"),
)


class Once(NamedTuple):
    """Seconds of what is done once, and the number of colours."""

    detection: float
    coloring: float
    colors: int


def timed(work: Work) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def ours(problem: Problem) -> tuple[Once, dict[str, Work]]:
    x = problem.point()
    of = "hessian" if problem.is_hessian else "jacobian"
    mode = "star" if problem.is_hessian else "columns"

    def f(x: Tensor) -> Tensor:
        return problem.func(x, torch)

    detection, pattern = timed(lambda: tl.sparsity(f, x, of=of))
    coloring, colored = timed(lambda: tl.coloring(pattern, mode))
    transform = getattr(tl, problem.transform)
    coo = transform(f, sparse=colored)
    values = transform(f, sparse=colored, layout="values")
    compiled = tl.compile(values, wait=True)
    works = {COO: lambda: coo(x), VALUES: lambda: values(x), COMPILED: lambda: compiled(x)}
    return Once(detection, coloring, colored.num_colors), works


def dense(problem: Problem) -> tuple[float, Work]:
    """The dense matrix, or a chunk of it, and how many such chunks there are."""
    x = problem.point()

    def f(x: Tensor) -> Tensor:
        return problem.func(x, torch)

    if problem.size**2 <= MOST_DENSE:
        whole = getattr(tl, problem.transform)(f, chunk_size=CHUNK)
        return 1, lambda: whole(x)
    directions = torch.eye(CHUNK, problem.size, dtype=torch.float64)

    def chunk() -> Tensor:
        function = tl.grad(f) if problem.is_hessian else f
        return tl.vmap(lambda v: tl.jvp(function, (x,), (v,))[1])(directions)

    return problem.size / CHUNK, chunk


def asdex(problem: Problem) -> tuple[Once, dict[str, Work]]:
    import jax
    import jax.numpy as jnp

    library: ModuleType = importlib.import_module("asdex")
    jax.config.update("jax_enable_x64", True)
    x = jnp.asarray(problem.point().numpy())

    def f(x: Any) -> Any:
        return problem.func(x, jnp)

    kind = "hessian" if problem.is_hessian else "jacobian"
    options = {} if problem.is_hessian else {"mode": "fwd"}
    detection, pattern = timed(lambda: getattr(library, f"{kind}_sparsity")(f, x))
    color = getattr(library, f"{kind}_coloring_from_sparsity")
    color(library.SparsityPattern.from_dense(torch.eye(3).numpy()), **options)  # numba compiles
    coloring, colored = timed(lambda: color(pattern, **options))
    run = jax.jit(getattr(library, f"{kind}_from_coloring")(f, colored))
    once = Once(detection, coloring, colored.num_colors)
    return once, {ASDEX: lambda: run(x).data.block_until_ready()}


def measure(problem: Problem, effort: Effort) -> tuple[dict[str, Once], dict[str, Timing], bool]:
    """What is done once, seconds per call, and whether the dense time is of a chunk, scaled."""
    once, works = {}, {}
    once["torchlayers"], works = ours(problem)
    if find_spec("asdex") is not None:
        once["asdex"], theirs = asdex(problem)
        works |= theirs
    for work in works.values():
        work()
    timings = by_turns(works, effort, time.process_time)
    chunks, work = dense(problem)
    timings[DENSE] = Timing.of([timed(work)[0] for _ in range(2)]).scaled(chunks)
    return once, timings, chunks != 1


def memory() -> None:
    """Prints the peak memory of calls, in bytes an entry."""
    print("\nPeak memory of a call, in bytes an entry\n")
    print(f"| problem | unknowns | entries | {COO} | {VALUES} | {COMPILED} |")
    print("|---|---:|---:|---:|---:|---:|")
    for problem in PROBLEMS:
        for side in (79, 158, 316):
            sized = problem._replace(size=side**2)
            _, works = ours(sized)
            entries = works[VALUES]().numel()
            works[COMPILED]()
            cells = [f"{peak_bytes(works[peer]) / entries:.0f}" for peer in (COO, VALUES, COMPILED)]
            print(
                f"| {problem.name} | {sized.size} | {entries} | {' | '.join(cells)} |", flush=True
            )


def arrow(size: int) -> tl.SparsityPattern:
    """A dense row, a dense column and the diagonal."""
    i, zero = torch.arange(size), torch.zeros(size, dtype=torch.int64)
    return tl.SparsityPattern.from_coo(
        torch.cat([i, zero, i]), torch.cat([i, i, zero]), (size, size)
    )


def with_hubs(size: int) -> tl.SparsityPattern:
    """Six entries in a row, in columns of which a few are in most rows, and its transpose."""
    generator = torch.Generator().manual_seed(0)
    few = (torch.rand(3 * size, generator=generator) ** 4 * size).long()
    any_of_them = torch.randint(size, (3 * size,), generator=generator)
    i = torch.arange(size)
    rows, cols = torch.cat([i, few, any_of_them]), torch.cat([i, any_of_them, few])
    return tl.SparsityPattern.from_coo(rows, cols, (size, size))


def colorings() -> None:
    """Prints the CPU seconds of colourings in both directions, and of star colourings."""
    print("\nColourings, CPU seconds\n")
    print("| pattern | unknowns | entries | mode | colours | seconds |")
    print("|---|---:|---:|---|---:|---:|")
    for make in (arrow, with_hubs):
        for size in (25_000, 50_000, 100_000):
            pattern = make(size)
            for mode in ("bidirectional", "star"):
                seconds, colored = timed(lambda: tl.coloring(pattern, mode))  # noqa: B023
                print(
                    f"| {make.__name__} | {size} | {pattern.nnz} | {mode} | {colored.num_colors} | "
                    f"{seconds:.2f} |",
                    flush=True,
                )


def main() -> None:
    torch.set_num_threads(1)
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    tl.sparsity(torch.sin, torch.ones(1))  # the first call imports the rules
    print("| problem | unknowns | library | detection, s | colouring, s | colours |")
    print("|---|---:|---|---:|---:|---:|")
    rows = []
    for problem in PROBLEMS:
        once, timings, is_scaled = measure(problem, Effort(rounds=7, block=0.2))
        for library, facts in once.items():
            print(
                f"| {problem.name} | {problem.size} | {library} | {facts.detection:.2f} | "
                f"{facts.coloring:.2f} | {facts.colors} |",
                flush=True,
            )
        rows.append((problem, timings, is_scaled))
    peers = (DENSE, COO, VALUES, COMPILED, ASDEX)
    print(f"\nCPU milliseconds of a call\n\n| problem | {' | '.join(peers)} |")
    print(f"|---|{'---:|' * len(peers)}")
    for problem, timings, is_scaled in rows:
        cells = [
            ("~" if is_scaled and peer == DENSE else "") + f"{timings[peer].median * 1e3:.2f}"
            if peer in timings
            else ""
            for peer in peers
        ]
        print(f"| {problem.name} | {' | '.join(cells)} |")
    memory()
    colorings()


if __name__ == "__main__":
    main()
