"""Derivatives through solutions, beside jaxopt's under jit; and memory against iterations.

``python -m benchmarks.implicit`` writes two tables into docs/implicit.md; with ``--quick`` they are
rough, and printed only. It needs jax and jaxopt.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.timing import Effort, Work, by_turns
from torchlayers.implicit import solvers
from torchlayers.memory import PeakMemory

HEADER = ["gradient of", "jaxopt, jit", "torchlayers, eager", "torchlayers, compiled", "ratio"]
MEMORY_HEADER = ["iterations", "through the iterations", "custom_fixed_point"]
TOLERANCE = 1e-6
ATOMS = 100_000

Problem = tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]


def arguments(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def equilibrium(batch: int, width: int, name: str) -> Problem:
    """A deep equilibrium layer: fixed-point iteration, and gmres or bicgstab for its gradient."""
    linear = {"gmres": solvers.gmres, "bicgstab": solvers.bicgstab}[name]
    weight, x = arguments((width, width), (batch, width))
    weight = 0.7 * weight / torch.linalg.matrix_norm(weight, 2)

    def ours(weight: Tensor, x: Tensor) -> Tensor:
        return tl.custom_fixed_point(  # type: ignore[no-any-return]
            lambda z: torch.tanh(z @ weight + x),
            torch.zeros_like(x),
            lambda f, z: solvers.fixed_point(f, z, tol=TOLERANCE),
            lambda g, y: linear(g, y, tol=TOLERANCE),
        )

    def theirs(weight: Any, x: Any) -> Any:
        import jax.numpy as jnp
        import jaxopt
        from jaxopt import linear_solve

        def solve(matvec: Any, b: Any, **_: Any) -> Any:
            return getattr(linear_solve, f"solve_{name}")(matvec, b, tol=TOLERANCE)

        solver = jaxopt.FixedPointIteration(
            lambda z, weight, x: jnp.tanh(z @ weight + x),
            maxiter=1000,
            tol=TOLERANCE,
            implicit_diff=True,
            implicit_diff_solve=solve,
        )
        return solver.run(jnp.zeros_like(x), weight, x).params

    return ours, theirs, [weight, x]


def newton_systems(batch: int, size: int) -> Problem:
    """Small systems, one for each sample, by ten Newton steps and a direct solve."""
    matrix, a = arguments((size, size), (batch, size))
    matrix = matrix / size + torch.eye(size)

    def ours(matrix: Tensor, a: Tensor) -> Tensor:
        def one(a: Tensor) -> Any:
            def residual(x: Tensor) -> Tensor:
                return x**3 + matrix @ x - a

            def solve(f: Any, x: Tensor) -> Any:
                def step(i: Any, x: Tensor) -> Tensor:
                    jacobian = torch.diag(3 * x**2) + matrix
                    return x - torch.linalg.solve(jacobian, f(x))

                return tl.fori_loop(0, 10, step, x)

            return tl.custom_root(residual, torch.zeros_like(a), solve)

        return tl.vmap(one)(a)  # type: ignore[no-any-return]

    def theirs(matrix: Any, a: Any) -> Any:
        import jax
        import jax.numpy as jnp
        from jaxopt import implicit_diff
        from jaxopt.linear_solve import solve_lu

        def residual(x: Any, matrix: Any, a: Any) -> Any:
            return x**3 + matrix @ x - a

        @implicit_diff.custom_root(residual, solve=solve_lu)
        def solver(x: Any, matrix: Any, a: Any) -> Any:
            def step(_: Any, x: Any) -> Any:
                jacobian = jnp.diag(3 * x**2) + matrix
                return x - jnp.linalg.solve(jacobian, residual(x, matrix, a))

            return jax.lax.fori_loop(0, 10, step, x)

        return jax.vmap(lambda a: solver(jnp.zeros_like(a), matrix, a))(a)

    return ours, theirs, [matrix, a]


def ridge(rows: int, columns: int) -> Problem:
    """Ridge regression by conjugate gradients: the gradient by data and penalties."""
    data, target, penalty = arguments((rows, columns), (rows,), (columns,))

    def ours(data: Tensor, target: Tensor, penalty: Tensor) -> Tensor:
        def matvec(w: Tensor) -> Tensor:
            return data.mT @ (data @ w) / rows + penalty.exp() * w

        def solve(matvec: Any, b: Tensor) -> Any:
            return solvers.cg(matvec, b, tol=TOLERANCE)

        b = data.mT @ target / rows
        return tl.custom_linear_solve(matvec, b, solve, symmetric=True)  # type: ignore[no-any-return]

    def theirs(data: Any, target: Any, penalty: Any) -> Any:
        import jax.numpy as jnp
        import jaxopt
        from jaxopt.linear_solve import solve_cg

        def optimality(w: Any, data: Any, target: Any, penalty: Any) -> Any:
            return data.T @ (data @ w - target) / rows + jnp.exp(penalty) * w

        def cg(matvec: Any, b: Any, **_: Any) -> Any:
            return solve_cg(matvec, b, tol=TOLERANCE)

        @jaxopt.implicit_diff.custom_root(optimality, solve=cg)
        def solver(w: Any, data: Any, target: Any, penalty: Any) -> Any:
            def matvec(w: Any) -> Any:
                return data.T @ (data @ w) / rows + jnp.exp(penalty) * w

            return cg(matvec, data.T @ target / rows)

        return solver(None, data, target, penalty)

    return ours, theirs, [data, target, penalty]


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "a deep equilibrium layer, 16 x 32, gmres": lambda: equilibrium(16, 32, "gmres"),
    "a deep equilibrium layer, 16 x 32, bicgstab": lambda: equilibrium(16, 32, "bicgstab"),
    "a deep equilibrium layer, 128 x 128, gmres": lambda: equilibrium(128, 128, "gmres"),
    "a deep equilibrium layer, 128 x 128, bicgstab": lambda: equilibrium(128, 128, "bicgstab"),
    "32 systems of 8 unknowns, Newton": lambda: newton_systems(32, 8),
    "1,000 systems of 8 unknowns, Newton": lambda: newton_systems(1000, 8),
    "ridge regression, 500 x 100, cg": lambda: ridge(500, 100),
}


def works(problem: Problem) -> dict[str, Work]:
    """The gradient by all arguments, of a sum of squares of the solution."""
    import jax

    ours, theirs, given = problem
    places = tuple(range(len(given)))

    def loss(*args: Tensor) -> Tensor:
        return ours(*args).square().sum()  # type: ignore[no-any-return]

    gradient = tl.grad(loss, places)
    compiled = tl.compile(gradient, wait=True)
    of_jax = jax.jit(jax.grad(lambda *args: (theirs(*args) ** 2).sum(), places))
    arrays = [jax.numpy.asarray(x.numpy()) for x in given]

    def by_jax() -> list[Tensor]:
        return [torch.from_dlpack(x) for x in jax.block_until_ready(of_jax(*arrays))]

    return {
        "jaxopt": by_jax,
        "eager": lambda: [*gradient(*given)],
        "compiled": lambda: [*compiled(*given)],
    }


def memory_of(iterations: int, implicit: bool) -> int:
    """The peak of the memory for the gradient of a fixed point, in multiples of its argument."""

    def solve(f: Callable[..., Any], x: Tensor) -> Any:
        return tl.fori_loop(0, iterations, lambda i, x: f(x), x)

    def loss(a: Tensor) -> Tensor:
        def f(x: Tensor) -> Tensor:
            return torch.tanh(0.5 * x + a)

        start = torch.zeros_like(a)
        x = (
            tl.custom_fixed_point(f, start, solve, solvers.bicgstab)
            if implicit
            else solve(f, start)
        )
        return x.sum()  # type: ignore[no-any-return]

    a = torch.linspace(-1, 1, ATOMS)
    with PeakMemory() as memory:
        tl.grad(loss)(a)
    return round(memory.peak / a.nbytes)


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(5, 0.002) if quick else Effort(31, 0.05)
    rows = []
    for name, problem in PROBLEMS.items():
        peers = works(problem())
        results = {each: work() for each, work in peers.items()}
        for result in results.values():
            torch.testing.assert_close(result, results["jaxopt"], rtol=1e-3, atol=1e-4)
        # CPU seconds, which other processes disturb less.
        timings = by_turns(peers, effort, time.process_time)
        cells = [f"{1e3 * timings[each].median:.3g} ms" for each in peers]
        ratio = timings["compiled"].median / timings["jaxopt"].median
        rows.append([name, *cells, f"{ratio:.2f}"])
    sizes = [(n, memory_of(n, False), memory_of(n, True)) for n in (10, 100, 1000)]
    memory = [[f"{n:,}", f"{recorded:,}", f"{implicit:,}"] for n, recorded, implicit in sizes]
    notes = (
        f"Float32, tolerance {TOLERANCE:.0e}, the same solvers on both sides; medians of CPU time, "
        f"and compiled / jaxopt. {machine.describe()}; `python -m benchmarks.implicit`."
    )
    text = (
        f"{page.table(HEADER, rows)}\n\n{notes}\n\nPeak memory of a gradient, in multiples of the "
        f"solution's size:\n\n{page.table(MEMORY_HEADER, memory)}"
    )
    return {"implicit.md": text}


if __name__ == "__main__":
    page.run(__doc__.splitlines()[0] if __doc__ else "", measure, "implicit")
