"""What a solver of a derivative's system is called with."""

import pytest
import torch

import torchlayers as tl


@pytest.mark.parametrize("compiled", [False, True])
def test_solvers_may_differentiate_forward_at_a_cotangent(compiled):
    """That of a sum is expanded, and jvp refuses such primals."""

    def recipe(g, y):
        return torch.linalg.solve(tl.jacfwd(g)(y), y)

    def root(a):
        return tl.custom_root(lambda x: x**3 + x - a, torch.ones_like(a), None, recipe)

    a = torch.tensor([2.0, 10.0], dtype=torch.float64)
    gradient = tl.grad(lambda a: root(a).sum())
    if compiled:
        gradient = tl.compile(gradient, backend="replay")
    torch.testing.assert_close(gradient(a), 1 / (3 * root(a) ** 2 + 1))


def test_a_start_may_be_expanded():
    a = torch.tensor([2.0, 10.0], dtype=torch.float64)
    start = torch.ones((), dtype=torch.float64).expand(2)
    x = tl.custom_root(lambda x: x**3 + x - a, start)
    torch.testing.assert_close(x, torch.tensor([1.0, 2.0], dtype=torch.float64))
