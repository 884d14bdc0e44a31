"""Captured by make_graph and compile: solvers become loops, and derivatives are traced."""

import pytest
import torch

import torchlayers as tl
from tests.implicit.problems import PROBLEMS
from tests.implicit.test_nests import NESTS, A

CASES = [
    ("root", "grad"),
    ("root", "jvp_grad"),
    ("root_by_loop", "grad"),
    ("root_by_loop", "vmap_grad"),
    ("fixed_point", "jvp"),
    ("fixed_point", "grad_vmap"),
    ("of_trees", "grad"),
    ("linear", "jvp_grad"),
    ("linear_decorated", "vmap_grad"),
    ("symmetric", "grad"),
]


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(("problem", "nest"), CASES)
def test_captured_derivatives_are_the_same(problem, nest):
    f = NESTS[nest](PROBLEMS[problem][0])
    captured = tl.compile(f, backend="replay")
    captured(torch.ones_like(A))
    torch.testing.assert_close(captured(A), f(A), rtol=1e-7, atol=1e-8)


@pytest.mark.full  # compiles for ten seconds; captured ones are above
@pytest.mark.parametrize("problem", ["root", "fixed_point_decorated"])
def test_compiled_derivatives_are_the_same(problem):
    f = NESTS["vmap_grad"](PROBLEMS[problem][0])
    torch.testing.assert_close(tl.compile(f)(A), f(A), rtol=1e-7, atol=1e-8)


def test_the_captured_solver_is_a_loop():
    """The graph does not grow with the iterations, and works for other numbers of them."""

    def f(a):
        return tl.custom_fixed_point(lambda x: torch.cos(a * x), torch.ones_like(a))

    graph = tl.make_graph(tl.grad(f))(torch.tensor(0.1, dtype=torch.float64))
    assert len(graph.graph.nodes) < 60
    for a in (0.1, 0.5, 0.9):
        a = torch.tensor(a, dtype=torch.float64)
        torch.testing.assert_close(graph(a)[0], tl.grad(f)(a), rtol=1e-7, atol=1e-8)


SOLVERS = {"cg": tl.implicit.solvers.cg, "gmres": tl.implicit.solvers.gmres}


@pytest.mark.sweep
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("outer", [tl.jacfwd, tl.jacrev], ids=["forward", "reverse"])
def test_second_derivatives_by_forward_mode(outer, solver):
    """The rule of jvp runs below its layer; the matrix product reads the tensor of that layer."""
    matrix = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    b = torch.tensor([0.5, -1.0], dtype=torch.float64)

    def f(b):
        x = SOLVERS[solver](lambda v: matrix @ v * (1 + b @ b), b)
        return x.pow(3).sum()

    derivative = tl.jacfwd(outer(f))
    captured = tl.compile(derivative, backend="replay")
    torch.testing.assert_close(captured(b), derivative(b), rtol=1e-7, atol=1e-8)
