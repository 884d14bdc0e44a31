"""Equations with two solutions each: by this package's functions, and by plain operators."""

import torch

import torchlayers as tl
from torchlayers.implicit import solvers

N = 3
W = torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.1, -0.3], [-0.1, 0.2, 0.25]], dtype=torch.float64)


def _matrix(a):
    return torch.diag(2 + a**2) + torch.outer(torch.sin(a), torch.cos(a)) * 0.3 + W


def _residual(x, a):
    return x**3 + W @ x + x - a


def root(a):
    return tl.custom_root(lambda x: _residual(x, a), torch.zeros(N, dtype=a.dtype))


def root_unrolled(a):
    x = torch.zeros(N, dtype=a.dtype)
    for _ in range(25):  # Newton's method
        x = x - torch.linalg.solve(torch.diag(3 * x**2 + 1) + W, _residual(x, a))
    return x


def _newton_loop(f, x):
    def step(carry):
        x, _ = carry
        new = x - torch.linalg.solve(tl.jacfwd(f)(x), f(x))
        return new, (new - x).abs().max()

    start = x, torch.ones((), dtype=x.dtype)
    return tl.while_loop(lambda carry: carry[1] > 1e-13, step, start)[0]


def root_by_loop(a):
    """The user's own solver, with a number of trips that depends on the values."""
    return tl.custom_root(
        lambda x: _residual(x, a), torch.zeros(N, dtype=a.dtype), _newton_loop, solvers.gmres
    )


@tl.custom_root(_residual)
def _decorated_root(x, a):
    return _newton_loop(lambda x: _residual(x, a), x)


def root_decorated(a):
    return _decorated_root(torch.zeros(N, dtype=a.dtype), a)


def fixed_point(a):
    return tl.custom_fixed_point(
        lambda x: torch.tanh(W @ x + a), torch.zeros(N, dtype=a.dtype), tangent_solve=solvers.gmres
    )


def fixed_point_unrolled(a):
    x = torch.zeros(N, dtype=a.dtype)
    for _ in range(70):
        x = torch.tanh(W @ x + a)
    return x


@tl.custom_fixed_point(lambda x, u: torch.tanh(W @ x + u))
def _decorated_fixed_point(x, u):
    return tl.fori_loop(0, 70, lambda i, x: torch.tanh(W @ x + u), x)


def fixed_point_decorated(a):
    return _decorated_fixed_point(torch.zeros(N, dtype=a.dtype), a)


def of_trees(a):
    def f(x):
        return {
            "p": torch.tanh(W @ x["p"] + 0.1 * x["q"][0] + a),
            "q": (0.5 * torch.sin(x["p"].sum()) * a[0] + 0.2 * x["q"][0],),
        }

    start = {"p": torch.zeros(N, dtype=a.dtype), "q": (torch.zeros((), dtype=a.dtype),)}
    x = tl.custom_fixed_point(f, start)
    return x["p"] * x["q"][0]


def of_trees_unrolled(a):
    p, q = torch.zeros(N, dtype=a.dtype), torch.zeros((), dtype=a.dtype)
    for _ in range(80):
        p, q = (
            torch.tanh(W @ p + 0.1 * q + a),
            0.5 * torch.sin(p.sum()) * a[0] + 0.2 * q,
        )
    return p * q


def linear(a):
    A = _matrix(a)
    return tl.custom_linear_solve(lambda x: A @ x, torch.cos(a))


def linear_unrolled(a):
    return torch.linalg.solve(_matrix(a), torch.cos(a))


def linear_given(a):
    """The solvers use the matrix, not the function that they are given."""
    A = _matrix(a)
    return tl.custom_linear_solve(
        lambda x: A @ x,
        torch.cos(a),
        lambda _, b: torch.linalg.solve(A, b),
        lambda _, b: torch.linalg.solve(A.mT, b),
    )


@tl.custom_linear_solve(
    lambda x, A: A @ x, transpose_solve=lambda b, A: torch.linalg.solve(A.mT, b)
)
def _decorated_solve(b, A):
    return torch.linalg.solve(A, b)


def linear_decorated(a):
    return _decorated_solve(torch.cos(a), _matrix(a))


def symmetric(a):
    A = _matrix(a)
    return tl.custom_linear_solve(
        lambda x: A.mT @ (A @ x), torch.cos(a), solvers.cg, symmetric=True
    )


def symmetric_unrolled(a):
    A = _matrix(a)
    return torch.linalg.solve(A.mT @ A, torch.cos(a))


def minimizer(a):
    """The equation is itself a gradient."""

    def energy(x):
        return (x**4).sum() / 4 + (W.mT @ x).square().sum() / 2 + x.square().sum() / 2 - a.sin() @ x

    return tl.custom_root(tl.grad(energy), torch.zeros(N, dtype=a.dtype))


def minimizer_unrolled(a):
    x = torch.zeros(N, dtype=a.dtype)
    M = W @ W.mT + torch.eye(N, dtype=a.dtype)
    for _ in range(25):
        x = x - torch.linalg.solve(torch.diag(3 * x**2) + M, x**3 + M @ x - a.sin())
    return x


def nested(a):
    """The equation contains the solution of another one, which depends on the unknowns."""

    def f(x):
        return tl.custom_fixed_point(lambda y: torch.tanh(W @ y + 0.3 * x + a), torch.zeros_like(a))

    return tl.custom_fixed_point(f, torch.zeros_like(a))


def nested_unrolled(a):
    x = torch.zeros_like(a)
    for _ in range(70):
        x = torch.tanh(W @ x + 0.3 * x + a)
    return x


PROBLEMS = {
    "root": (root, root_unrolled),
    "root_by_loop": (root_by_loop, root_unrolled),
    "root_decorated": (root_decorated, root_unrolled),
    "fixed_point": (fixed_point, fixed_point_unrolled),
    "fixed_point_decorated": (fixed_point_decorated, fixed_point_unrolled),
    "of_trees": (of_trees, of_trees_unrolled),
    "linear": (linear, linear_unrolled),
    "linear_given": (linear_given, linear_unrolled),
    "linear_decorated": (linear_decorated, linear_unrolled),
    "symmetric": (symmetric, symmetric_unrolled),
    "minimizer": (minimizer, minimizer_unrolled),
    "nested": (nested, nested_unrolled),
}
