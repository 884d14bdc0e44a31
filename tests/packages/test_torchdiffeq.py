"""torchdiffeq's solvers adapt their steps to the error, which they read: compiled in parts."""

import pytest
import torch

import torchlayers as tl
from tests.packages import package

torchdiffeq = package("torchdiffeq")

TIMES = torch.tensor([0.0, 0.3], dtype=torch.float64)
WEIGHT = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.3
STARTS = [torch.linspace(-scale, 1, 4, dtype=torch.float64) for scale in (1, 2)]


def solution(method):
    options = {"step_size": 0.25} if method == "rk4" else None

    def solve(x):
        def slope(t, y):
            return (y @ WEIGHT).tanh() - y * t

        return torchdiffeq.odeint(
            slope, x, TIMES, method=method, rtol=1e-2, atol=1e-3, options=options
        )

    return solve


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_solutions_and_their_gradients(method):
    solve = solution(method)
    compiled = tl.compile(solve, backend="replay")
    gradient = tl.grad(lambda x: solve(x)[-1].sum())
    compiled_gradient = tl.compile(gradient, backend="replay")
    for x in STARTS + STARTS[:2]:
        torch.testing.assert_close(compiled(x), solve(x))
        torch.testing.assert_close(compiled_gradient(x), gradient(x))
    assert not compiled.report().as_it_is
