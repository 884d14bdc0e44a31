"""torchdiffeq's solvers: odeint and odeint_adjoint inside transforms.

Adaptive solvers read the error: they are compiled in parts, and batched one sample after another.
"""

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


class Slope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(WEIGHT.clone())

    def forward(self, t, y):
        return (y @ self.weight).tanh() - y * t


SLOPE = Slope()
SOLVERS = {
    "odeint": torchdiffeq.odeint,
    "odeint_adjoint": torchdiffeq.odeint_adjoint,
}


def last_state(solver, method, slope=SLOPE, **options):
    """The state at the last time. odeint_adjoint solves another equation for the gradient, so both
    are as exact as the tolerance or the step size only."""
    if method == "rk4":
        options["options"] = {"step_size": 0.025}
    return lambda x: SOLVERS[solver](
        slope, x, TIMES, method=method, rtol=1e-8, atol=1e-10, **options
    )[-1]


def plain_jacobian(method, x):
    solve = last_state("odeint", method)
    return torch.autograd.functional.jacobian(solve, x)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


every_solver = pytest.mark.parametrize("solver", SOLVERS)
every_method = pytest.mark.parametrize("method", ["dopri5", "rk4"])


@every_solver
@every_method
def test_grad_and_jacrev(solver, method):
    solve, x = last_state(solver, method), STARTS[0]
    expected = plain_jacobian(method, x)
    assert_close(tl.grad(lambda x: solve(x).sum())(x), expected.sum(0))
    assert_close(tl.jacrev(solve, chunk_size=1)(x), expected)


@every_solver
@every_method
def test_compiled_gradients(solver, method):
    solve = last_state(solver, method)
    gradient = tl.compile(tl.grad(lambda x: solve(x).sum()), backend="replay")
    for x in STARTS:
        assert_close(gradient(x), plain_jacobian(method, x).sum(0))


@every_solver
@every_method
def test_each_sample_has_steps_of_its_own(solver, method):
    xs = torch.stack(STARTS)
    solve = tl.sequential_vmap(last_state(solver, method))
    assert_close(tl.vmap(solve)(xs), torch.stack([last_state("odeint", method)(x) for x in xs]))
    expected = torch.stack([plain_jacobian(method, x).sum(0) for x in xs])
    assert_close(tl.vmap(tl.grad(lambda x: solve(x).sum()))(xs), expected)
    assert_close(tl.grad(lambda xs: tl.vmap(solve)(xs).sum())(xs), expected)


@every_solver
@every_method
def test_gradients_of_parameters(solver, method):
    params = {name: param.detach() for name, param in SLOPE.named_parameters()}

    def loss(params, solver):
        def slope(t, y):
            return torch.func.functional_call(SLOPE, params, (t, y))

        adjoint = {"adjoint_params": tuple(params.values())} if solver == "odeint_adjoint" else {}
        return last_state(solver, method, slope, **adjoint)(STARTS[0]).square().sum()

    weight = params["weight"].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss({"weight": weight}, "odeint"), weight)
    assert_close(tl.grad(loss)(params, solver), {"weight": expected})


def test_fixed_steps_under_vmap_and_forward_mode():
    solve, x = last_state("odeint", "rk4"), STARTS[0]
    expected = plain_jacobian("rk4", x)
    xs = torch.stack(STARTS)
    assert_close(tl.vmap(solve)(xs), torch.stack([solve(x) for x in xs]))
    assert_close(tl.jvp(solve, (x,), (torch.ones_like(x),))[1], expected.sum(1))
    assert_close(tl.jacfwd(solve)(x), expected)
    assert_close(tl.jacobian(solve)(x), expected)


def test_second_derivatives_of_adaptive_steps():
    solve, x = last_state("odeint", "dopri5"), STARTS[0]

    def energy(x):
        return solve(x).square().sum()

    expected = torch.autograd.functional.hessian(energy, x)
    assert_close(tl.hessian(energy, mode="reverse")(x), expected)
    assert_close(tl.hessian(energy, mode="auto")(x), expected)
    pull = lambda cotangent: tl.vjp(solve, x)[1](cotangent)[0]  # noqa: E731
    tangent = tl.vjp(pull, torch.zeros_like(x))[1](torch.ones_like(x))[0]
    assert_close(tangent, plain_jacobian("dopri5", x).sum(1))


def test_forward_mode_of_adaptive_steps_is_refused_in_words():
    solve = last_state("odeint", "dopri5")
    with pytest.raises(tl.errors.MissingDerivativeError, match="_UncheckedAssign has no jvp"):
        tl.jvp(solve, (STARTS[0],), (STARTS[0],))
