"""Solvers that return a Solution, beside optimistix and lineax under jit.

``python -m benchmarks.solvers`` writes a table into docs/implicit.md; with ``--quick`` it is rough,
and printed only. It needs jax, optimistix and lineax.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.timing import Effort, Work, by_turns
from torchlayers.implicit import find_fixed_point, find_root, least_squares, linear_solve, minimize

HEADER = ["solver", "size", "JAX, jit", "torchlayers, compiled", "ratio", "error of both"]
TOLERANCE = 1e-5

# Two functions of the same arguments, ours and JAX's; what the result should be; the arguments.
Problem = tuple[Callable[..., Any], Callable[..., Any], Tensor, list[Tensor]]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def logistic(method: str, size: int) -> Problem:
    """Regularized logistic regression with as many weights as the size, on ten times the data."""
    data = numbers(10 * size, size)
    target = (data[:, 0] + data[:, -1] + 0.5 * numbers(10 * size) > 0).float()

    def loss(library: Any, softplus: Any, w: Any, data: Any, target: Any) -> Any:
        margin = data @ w
        return (softplus(margin) - target * margin).mean() + 0.05 * (w * w).sum()

    def ours(data: Tensor, target: Tensor) -> Any:
        f = partial(loss, torch, torch.nn.functional.softplus, data=data, target=target)
        return minimize(f, torch.zeros_like(data[0]), method, tol=TOLERANCE).value

    def theirs(data: Any, target: Any) -> Any:
        import jax
        import jax.numpy as jnp
        import optimistix as optx

        solvers = {"bfgs": optx.BFGS, "lbfgs": optx.LBFGS, "cg": optx.NonlinearCG}
        return optx.minimise(
            lambda w, _: loss(jnp, jax.nn.softplus, w, data, target),
            solvers[method](rtol=TOLERANCE, atol=TOLERANCE),
            jnp.zeros_like(data[0]),
            max_steps=1000,
            throw=False,
        ).value

    exact = minimize(
        partial(
            loss, torch, torch.nn.functional.softplus, data=data.double(), target=target.double()
        ),
        torch.zeros(size, dtype=torch.float64),
    ).value
    return ours, theirs, exact, [data, target]


def curves(method: str, size: int) -> Problem:
    """Exponential curves through 16 values each, one for each sample of a batch."""
    t = torch.linspace(0, 2, 16)
    rates = 0.5 + torch.rand(size, generator=torch.Generator().manual_seed(1))
    values = 3 * (-rates[:, None] * t).exp() + 0.05 * numbers(size, 16)

    def residuals(exp: Any, t: Any, values: Any, x: Any) -> Any:
        return x[0] * exp(-x[1] * t) - values

    def solved(t: Tensor, values: Tensor) -> Any:
        def one(values: Tensor) -> Any:
            f = partial(residuals, torch.exp, t, values)
            return least_squares(f, torch.ones_like(t[:2]), method, tol=TOLERANCE).value

        return tl.vmap(one)(values)

    def theirs(t: Any, values: Any) -> Any:
        import jax
        import jax.numpy as jnp
        import optimistix as optx

        solvers = {
            "lm": optx.LevenbergMarquardt,
            "dogleg": optx.Dogleg,
            "gauss_newton": optx.GaussNewton,
        }

        def one(values: Any) -> Any:
            return optx.least_squares(
                lambda x, _: residuals(jnp.exp, t, values, x),
                solvers[method](rtol=TOLERANCE, atol=TOLERANCE),
                jnp.ones(2),
                throw=False,
            ).value

        return jax.vmap(one)(values)

    return solved, theirs, solved(t.double(), values.double()), [t, values]


def scalar_roots(size: int) -> Problem:
    """Kepler's equation for each sample of a batch, by bisection on both sides."""
    excentricity = torch.linspace(0.1, 0.9, size)

    def solved(e: Tensor) -> Any:
        def one(e: Tensor) -> Any:
            bracket = torch.zeros_like(e), torch.full_like(e, 4.0)
            f = lambda x: x - e * torch.sin(x) - 1  # noqa: E731
            return find_root(f, None, "bisection", bracket=bracket, tol=TOLERANCE).value

        return tl.vmap(one)(e)

    def theirs(e: Any) -> Any:
        import jax
        import jax.numpy as jnp
        import optimistix as optx

        def one(e: Any) -> Any:
            return optx.root_find(
                lambda x, _: x - e * jnp.sin(x) - 1,
                optx.Bisection(rtol=TOLERANCE, atol=TOLERANCE),
                jnp.array(2.0),
                options={"lower": 0.0, "upper": 4.0},
                throw=False,
            ).value

        return jax.vmap(one)(e)

    return solved, theirs, solved(excentricity.double()), [excentricity]


def newton(size: int) -> Problem:
    """A system of as many equations as the size, by Newton's method."""
    matrix, a = numbers(size, size) / (2 * size) + torch.eye(size), numbers(size)

    def solved(matrix: Tensor, a: Tensor) -> Any:
        f = lambda x: x**3 + matrix @ x - a  # noqa: E731
        return find_root(f, torch.zeros_like(a), tol=TOLERANCE).value

    def theirs(matrix: Any, a: Any) -> Any:
        import jax.numpy as jnp
        import optimistix as optx

        solver = optx.Newton(rtol=TOLERANCE, atol=TOLERANCE)
        f = lambda x, _: x**3 + matrix @ x - a  # noqa: E731
        return optx.root_find(f, solver, jnp.zeros_like(a), throw=False).value

    return solved, theirs, solved(matrix.double(), a.double()), [matrix, a]


def equilibrium(size: int) -> Problem:
    """The fixed point of a layer of as many units as the size, of which 16 samples are one system;
    by Anderson's mixing here, by repetition there, which has no other."""
    weight, x = numbers(size, size), numbers(16, size)
    weight = 0.9 * weight / torch.linalg.matrix_norm(weight, 2)

    def solved(weight: Tensor, x: Tensor) -> Any:
        f = lambda z: torch.tanh(z @ weight + x)  # noqa: E731
        return find_fixed_point(f, torch.zeros_like(x), tol=TOLERANCE).value

    def theirs(weight: Any, x: Any) -> Any:
        import jax.numpy as jnp
        import optimistix as optx

        solver = optx.FixedPointIteration(rtol=TOLERANCE, atol=TOLERANCE)
        f = lambda z, _: jnp.tanh(z @ weight + x)  # noqa: E731
        return optx.fixed_point(f, solver, jnp.zeros_like(x), max_steps=1000, throw=False).value

    return solved, theirs, solved(weight.double(), x.double()), [weight, x]


def linear(method: str, size: int) -> Problem:
    """Linear systems: a matrix of the size; tridiagonal, lower triangular and so on by a tag."""
    matrix, b = numbers(size, size) / size**0.5, numbers(size)
    matrix = {
        "cg": matrix @ matrix.mT + torch.eye(size),
        "cholesky": matrix @ matrix.mT + torch.eye(size),
        "tridiagonal": (matrix + 4 * torch.eye(size)).tril(1).triu(-1),
        "lower_triangular": (matrix + 4 * torch.eye(size)).tril(),
    }.get(method, matrix + 3 * torch.eye(size))

    def ours(matrix: Tensor, b: Tensor) -> Any:
        return linear_solve(matrix, b, method, tol=TOLERANCE).value

    def theirs(matrix: Any, b: Any) -> Any:
        import lineax as lx

        tags = {
            "cg": lx.positive_semidefinite_tag,
            "cholesky": lx.positive_semidefinite_tag,
            "tridiagonal": lx.tridiagonal_tag,
            "lower_triangular": lx.lower_triangular_tag,
        }
        solvers = {
            "cg": lx.CG(rtol=TOLERANCE, atol=TOLERANCE),
            "gmres": lx.GMRES(rtol=TOLERANCE, atol=TOLERANCE),
            "bicgstab": lx.BiCGStab(rtol=TOLERANCE, atol=TOLERANCE),
            "lu": lx.LU(),
            "cholesky": lx.Cholesky(),
            "qr": lx.QR(),
            "tridiagonal": lx.Tridiagonal(),
            "lower_triangular": lx.Triangular(),
        }
        operator = lx.MatrixLinearOperator(matrix, tags.get(method, ()))
        return lx.linear_solve(operator, b, solvers[method], throw=False).value

    exact = torch.linalg.solve(matrix.double(), b.double())
    return ours, theirs, exact, [matrix, b]


PROBLEMS: dict[str, tuple[Callable[[int], Problem], list[int]]] = {
    "logistic regression, BFGS": (partial(logistic, "bfgs"), [10, 50, 200]),
    "logistic regression, L-BFGS": (partial(logistic, "lbfgs"), [10, 50, 200]),
    "logistic regression, nonlinear CG": (partial(logistic, "cg"), [10, 50, 200]),
    "a batch of curves, Levenberg-Marquardt": (partial(curves, "lm"), [10, 100, 1000]),
    "a batch of curves, dogleg": (partial(curves, "dogleg"), [10, 100, 1000]),
    "a batch of curves, Gauss-Newton": (partial(curves, "gauss_newton"), [10, 100, 1000]),
    "a batch of scalar roots, bisection": (scalar_roots, [10, 1000, 100_000]),
    "a system, Newton": (newton, [10, 50, 120]),
    "an equilibrium layer, Anderson": (equilibrium, [16, 64, 256]),
    **{
        f"a linear system, {method}": (partial(linear, method), [10, 100, 500])
        for method in (
            "lu",
            "cholesky",
            "lower_triangular",
            "tridiagonal",
            "cg",
            "gmres",
            "bicgstab",
        )
    },
}


def works(problem: Problem) -> dict[str, Work]:
    import jax

    ours, theirs, _, arguments = problem
    compiled = tl.compile(ours, wait=True)
    of_jax = jax.jit(theirs)
    arrays = [jax.numpy.asarray(x.numpy()) for x in arguments]

    def by_jax() -> list[Tensor]:
        return [torch.from_dlpack(jax.block_until_ready(of_jax(*arrays)))]

    return {"JAX": by_jax, "compiled": lambda: [compiled(*arguments)]}


def error_of(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(5, 0.002) if quick else Effort(21, 0.05)
    rows = []
    for name, (build, sizes) in PROBLEMS.items():
        for size in sizes[:1] if quick else sizes:
            problem = build(size)
            peers = works(problem)
            errors = [error_of(work()[0], problem[2]) for work in peers.values()]
            # CPU seconds, which other processes disturb less.
            timings = by_turns(peers, effort, time.process_time)
            cells = [f"{1e3 * timings[peer].median:.3g} ms" for peer in peers]
            ratio = timings["compiled"].median / timings["JAX"].median
            both = " / ".join(f"{error:.0e}" for error in errors)
            rows.append([name, f"{size:,}", *cells, f"{ratio:.2f}", both])
            print(*rows[-1], sep=" | ", flush=True)
    notes = (
        f"Float32, tolerance {TOLERANCE:.0e}; medians of CPU time; relative errors, JAX's / ours. "
        f"{machine.describe()}; `python -m benchmarks.solvers`."
    )
    return {"implicit.md": f"{page.table(HEADER, rows)}\n\n{notes}"}


if __name__ == "__main__":
    page.run(__doc__.splitlines()[0] if __doc__ else "", measure, "solvers")
