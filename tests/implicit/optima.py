"""Problems for the solvers that return a Solution: each with its methods, and solved by plain
operators."""

import torch

from torchlayers.implicit import find_fixed_point, find_root, least_squares, minimize

N = 3
W = torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.1, -0.3], [-0.1, 0.2, 0.25]], dtype=torch.float64)
A = torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64)


def _energy(x, a):
    return (x**4).sum() / 4 + (W.mT @ x).square().sum() / 2 + x.square().sum() / 2 - a.sin() @ x


def minimum(method):
    return lambda a: minimize(lambda x: _energy(x, a), torch.ones_like(a), method)


def minimum_unrolled(a):
    x = torch.zeros(N, dtype=a.dtype)
    M = W @ W.mT + torch.eye(N, dtype=a.dtype)
    for _ in range(25):
        x = x - torch.linalg.solve(torch.diag(3 * x**2) + M, x**3 + M @ x - a.sin())
    return x


TIMES = torch.linspace(0, 1, 7, dtype=torch.float64)


def _values(a):
    return torch.cos(a[0] * TIMES) + a[1] * TIMES + 0.3 * torch.sin(9 * TIMES) * a[2]


def _residuals(x, a):
    return {"fit": x[0] + x[1] * TIMES + x[2] * TIMES**2 - _values(a), "size": (0.1 * x**3,)}


def fit(method):
    return lambda a: least_squares(lambda x: _residuals(x, a), torch.zeros_like(a), method)


def fit_unrolled(a):
    """Newton's method for the gradient."""
    basis = torch.stack([torch.ones_like(TIMES), TIMES, TIMES**2], 1)
    x = torch.zeros(N, dtype=a.dtype)
    for _ in range(40):
        gradient = basis.mT @ (basis @ x - _values(a)) + 0.03 * x**5
        x = x - torch.linalg.solve(basis.mT @ basis + torch.diag(0.15 * x**4), gradient)
    return x


def _equation(x, a):
    return x**3 + W @ x + x - a


def root(method):
    return lambda a: find_root(lambda x: _equation(x, a), torch.zeros_like(a), method)


def root_unrolled(a):
    x = torch.zeros(N, dtype=a.dtype)
    for _ in range(25):
        x = x - torch.linalg.solve(torch.diag(3 * x**2 + 1) + W, _equation(x, a))
    return x


def fixed_point(method):
    return lambda a: find_fixed_point(
        lambda x: torch.tanh(W @ x + a), torch.zeros(N, dtype=a.dtype), method
    )


def fixed_point_unrolled(a):
    x = torch.zeros(N, dtype=a.dtype)
    for _ in range(70):
        x = torch.tanh(W @ x + a)
    return x


def bracketed(method):
    def solve(a):
        low, high = torch.tensor(-9.0, dtype=a.dtype), torch.tensor(4.0, dtype=a.dtype)
        return find_root(lambda x: x**3 + x - a.prod() - a[0], None, method, bracket=(low, high))

    return solve


def bracketed_unrolled(a):
    x = torch.zeros((), dtype=a.dtype)
    for _ in range(25):
        x = x - (x**3 + x - a.prod() - a[0]) / (3 * x**2 + 1)
    return x


PROBLEMS = {
    f"{problem.__name__}_{method}": (problem(method), unrolled)
    for problem, methods, unrolled in [
        (minimum, ["bfgs", "lbfgs", "cg"], minimum_unrolled),
        (fit, ["lm", "dogleg", "gauss_newton"], fit_unrolled),
        (root, ["newton", "broyden", "lm", "dogleg"], root_unrolled),
        (
            fixed_point,
            ["anderson", "iteration", "broyden", "newton"],
            fixed_point_unrolled,
        ),
        (bracketed, ["brent", "bisection"], bracketed_unrolled),
    ]
    for method in methods
}
