"""Solutions of equations that read a module's tensors, which a functional call has put there."""

import functools
import types

import pytest
import torch
from torch import nn

import torchlayers as tl

X = torch.linspace(-1, 1, 3, dtype=torch.float64)
K = torch.tensor(0.8, dtype=torch.float64)
SOLVE_FIXED_POINT = functools.partial(tl.implicit.solvers.fixed_point, tol=1e-14)
A = torch.tensor([[3.0, 1.0, 0.0], [0.5, 4.0, 1.0], [0.0, 1.0, 5.0]], dtype=torch.float64)


class Equation(nn.Module):
    """Calls body(self, x); its own tensors are others than those of the tests."""

    def __init__(self, body):
        super().__init__()
        self.register_buffer("k", torch.tensor(0.2, dtype=torch.float64))
        self.register_buffer("A", torch.eye(3, dtype=torch.float64))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def fixed_point(self, x):
    return tl.custom_fixed_point(
        lambda z: torch.tanh(self.k * z + x), torch.zeros_like(x), SOLVE_FIXED_POINT
    )


def root(self, x):
    return tl.custom_root(lambda z: z**3 + self.k * z - x, torch.ones_like(x))


def linear_solve(self, x):
    return tl.custom_linear_solve(
        lambda v: self.k * (self.A @ v), x, solve=tl.implicit.solvers.dense
    )


def own_solver(self, x):
    """The tangent solve reads the module, too."""
    return tl.custom_root(
        lambda z: z**3 + self.k * z - x,
        torch.ones_like(x),
        None,
        lambda g, y: y / (3 * root(self, x).detach() ** 2 + self.k),
    )


BODIES = [fixed_point, root, linear_solve, own_solver]


def by_attribute(body, k, x):
    equation = types.SimpleNamespace(k=k, A=A)
    y = body(equation, x)
    equation.k, equation.A = torch.zeros_like(k), torch.zeros_like(A)
    return y


def functional(body, k, x):
    return tl.functional(Equation(body))[0]({}, {"k": k, "A": A}, x)[0]


CALLS = {
    "functional_call": lambda body, k, x: tl.functional_call(
        Equation(body), {"k": k, "A": A}, (x,)
    ),
    "functional": functional,
    "torch.func": lambda body, k, x: torch.func.functional_call(
        Equation(body), {"k": k, "A": A}, (x,)
    ),
    "an attribute": by_attribute,
}


def slopes(f, *args, step=1e-6):
    """The derivative of the sum of f along ones, for each argument, by finite differences."""
    found = []
    for i, x in enumerate(args):
        ends = [
            f(*args[:i], x + sign * step * torch.ones_like(x), *args[i + 1 :]) for sign in (1, -1)
        ]
        found.append((ends[0] - ends[1]) / (2 * step))
    return found


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_derivatives(body, call):
    def f(k, x):
        return CALLS[call](body, k, x).sin().sum()

    right = slopes(f, K, X)
    gradients = tl.grad(f, (0, 1))(K, X)
    torch.testing.assert_close([g.sum() for g in gradients], right, rtol=1e-6, atol=1e-8)
    batched = tl.vmap(tl.grad(f, (0, 1)), (None, 0))(K, X[None])
    torch.testing.assert_close([g.sum() for g in batched], right, rtol=1e-6, atol=1e-8)
    tangents = (torch.ones_like(K), torch.ones_like(X))
    pushed = tl.jvp(f, (K, X), tangents)[1]
    torch.testing.assert_close(pushed, sum(right), rtol=1e-6, atol=1e-8)
    k, x = K.clone().requires_grad_(), X.clone().requires_grad_()
    plain = torch.autograd.grad(f(k, x), (k, x))
    torch.testing.assert_close([g.sum() for g in plain], right, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("body", [fixed_point, root], ids=lambda body: body.__name__)
def test_second_derivatives(body):
    def f(k):
        return CALLS["functional_call"](body, k, X).sin().sum()

    right = slopes(tl.grad(f), K)[0]
    torch.testing.assert_close(tl.hessian(f)(K), right, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(tl.grad(tl.grad(f))(K), right, rtol=1e-6, atol=1e-8)


@pytest.mark.sweep
@pytest.mark.parametrize("body", BODIES[:3], ids=lambda body: body.__name__)
def test_compiled(body):
    equation = Equation(body)

    def f(k, x):
        return tl.functional_call(equation, {"k": k, "A": A}, (x,)).sin().sum()

    compiled = tl.compile(tl.grad(f, (0, 1)), backend="replay")
    torch.testing.assert_close(compiled(K, X), tl.grad(f, (0, 1))(K, X))


class Equilibrium(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(3, 3)
        with torch.no_grad():
            self.cell.weight.mul_(0.3)

    def forward(self, x):
        return tl.custom_fixed_point(lambda z: torch.tanh(self.cell(z) + x), torch.zeros_like(x))


def test_an_ensemble_of_equilibrium_layers():
    members, params, buffers = tl.ensemble(lambda: Equilibrium().double(), seeds=range(2))
    params = {name: p + 0.1 for name, p in params.items()}
    gradient = tl.grad(lambda params: members(params, buffers, X)[0].square().sum())(params)

    def unrolled(weight, bias):
        z = torch.zeros_like(X)
        for _ in range(100):
            z = torch.tanh(weight @ z + bias + X)
        return z.square().sum()

    for i in range(2):
        right = tl.grad(unrolled, (0, 1))(params["cell.weight"][i], params["cell.bias"][i])
        torch.testing.assert_close(gradient["cell.weight"][i], right[0])
        torch.testing.assert_close(gradient["cell.bias"][i], right[1])


def test_the_gradient_of_a_module_whose_parameter_is_replaced():
    layer = Equilibrium().double()
    weight = layer.cell.weight
    (right,) = torch.autograd.grad(layer(X).sum(), weight)
    y = layer(X).sum()
    layer.cell.weight = nn.Parameter(torch.zeros_like(weight))
    torch.testing.assert_close(torch.autograd.grad(y, weight)[0], right)
