"""jet inside and around other transforms, and compiled."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import torchlayers as tl

W = torch.tensor([[0.5, -1.0, 0.2], [0.3, 0.8, -0.4]], dtype=torch.float64)
X = torch.tensor([0.3, -0.7, 1.2], dtype=torch.float64)
V = torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    return ((W @ x).tanh() * x[:2].exp()).softmax(0).log().sum()


def along(f, n):
    """The n-th derivative along V by nested jvps, a function of x."""
    for _ in range(n):
        f = (lambda g: lambda x: tl.jvp(g, (x,), (V,))[1])(f)
    return f


def third(f):
    return lambda x: tl.jet(f, (x,), ([V, None, None],))[1][2]


def test_jet():
    assert_close(third(f)(X), along(f, 3)(X))


def test_grad_of_jet():
    assert_close(tl.grad(third(f))(X), tl.grad(along(f, 3))(X))


def test_grad_of_jet_with_respect_to_the_series():
    found = tl.grad(lambda v: tl.jet(f, (X,), ([v, V],))[1][1])(V)
    expected = tl.grad(lambda v: tl.hvp(f, (X,), (v,))[0] @ v + tl.grad(f)(X) @ V)(V)
    assert_close(found, expected)


def test_jet_of_grad():
    assert_close(third(tl.grad(f))(X), along(tl.grad(f), 3)(X))


def test_jvp_of_jet_and_jet_of_jvp():
    assert_close(along(third(f), 1)(X), along(f, 4)(X))
    assert_close(third(along(f, 1))(X), along(f, 4)(X))


def test_jet_of_jet():
    assert_close(third(third(f))(X), along(f, 6)(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "f", [torch.lgamma, torch.special.i0e, torch.special.ndtri, torch.logit, F.logsigmoid]
)
def test_jet_of_jet_of_an_elementwise_operator(f):
    """Its rule enters another jet, below the outer ones."""
    x = torch.tensor([0.3, 0.7, 0.6], dtype=torch.float64)
    total = lambda x: f(x).sum()  # noqa: E731
    assert_close(third(third(total))(x), along(total, 6)(x))
    assert_close(tl.laplacian(third(total))(x), tl.laplacian(along(total, 3))(x))
    assert_close(tl.functionalize(third(total))(x), along(total, 3)(x))


def test_jets_of_one_point_do_not_mix():
    """The outer series passes through the inner one as a constant."""

    def inner(x):
        return tl.jet(lambda y: x * y, (V,), ([V, None],))[1][0]

    assert_close(tl.jet(inner, (X,), ([V, None],))[1][0], V * V)


def test_vmap_of_jet_and_jet_of_vmap():
    batch = torch.stack([X, 2 * X, -X])
    alone = torch.stack([third(f)(x) for x in batch])
    assert_close(tl.vmap(third(f))(batch), alone)
    around = tl.jet(tl.vmap(f), (batch,), ([V.expand(3, 3), None, None],))[1][2]
    assert_close(around, alone)


def test_jet_of_a_jacobian_and_a_jacobian_of_jet():
    assert_close(third(tl.jacrev(torch.sin))(X), along(tl.jacrev(torch.sin), 3)(X))
    assert_close(tl.hessian(third(f))(X), tl.hessian(along(f, 3))(X))


def test_functionalize_of_jet_and_jet_of_functionalize():
    assert_close(tl.functionalize(third(f))(X), third(f)(X))
    assert_close(third(tl.functionalize(f))(X), third(f)(X))


def test_a_fallback_inside_other_transforms():
    """matrix_exp has no rule."""

    def g(x):
        return torch.linalg.matrix_exp(torch.outer(x, x)).sum()

    assert_close(tl.grad(third(g))(X), tl.grad(along(g, 3))(X))
    assert_close(third(tl.grad(g))(X), along(tl.grad(g), 3)(X))
    assert_close(tl.vmap(third(g))(X.expand(2, 3)), third(g)(X).expand(2))
    assert_close(third(third(g))(X / 2), along(g, 6)(X / 2))


@pytest.mark.sweep
def test_compiled():
    compiled = tl.compile(lambda x, v: tl.jet(f, (x,), ([v, None, None],)))
    for x in (X, X + 1):
        assert_close(compiled(x, V), tl.jet(f, (x,), ([V, None, None],)))


@pytest.mark.sweep
def test_compiled_gradient():
    compiled = tl.compile(tl.grad(third(f)))
    assert_close(compiled(X), tl.grad(third(f))(X))


def test_by_autograd_outside():
    x = X.clone().requires_grad_()
    (third(f)(x)).backward()
    assert_close(x.grad, tl.grad(third(f))(X))


def test_control_flow():
    def scanned(x):
        return tl.scan(lambda carry, each: (carry * each.sin(), carry), x[0], x)[0]

    def looped(x):
        carry = x[0]
        for each in x.unbind():
            carry = carry * each.sin()
        return carry

    assert_close(third(scanned)(X), third(looped)(X))
    branches = lambda x: tl.cond(x.sum() > 0, torch.sin, torch.cos, x)  # noqa: E731
    assert_close(third(branches)(X), third(torch.sin)(X))


def test_the_stack_is_restored_after_an_error():
    def failing(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tl.jet(failing, (X,), ([V],))
    assert tl.current_stack() == ()


def test_the_layer_is_named_jet():
    seen = []
    tl.jet(lambda x: seen.append(tl.current_stack()) or x, (X,), ([V],))
    assert seen[0][0].kind == "jet"


def matrix(x):
    return torch.outer(x, x.sin()) + 2 * torch.eye(3).double()


SOLVED = {
    "solve": lambda x: torch.linalg.solve(matrix(x), V),
    "solve of the right": lambda x: torch.linalg.solve(matrix(x), x[None].exp(), left=False)[0],
    "inv": lambda x: torch.linalg.inv(matrix(x)) @ V,
    "slogdet": lambda x: torch.linalg.slogdet(matrix(x))[1] * V,
    "cholesky": lambda x: torch.linalg.cholesky(matrix(x) @ matrix(x).mT) @ V,
    "qr": lambda x: torch.linalg.qr(matrix(x))[1].abs() @ V,
}


@pytest.mark.parametrize("name", SOLVED)
def test_derivatives_around_jet_know_the_factors_of_a_matrix(name):
    f = SOLVED[name]

    def first(x):
        return tl.jet(f, (x,), ([V],))[1][0]

    expected = tl.jacfwd(along(f, 1))(X)
    assert_close(tl.jacrev(first)(X), expected)
    assert_close(tl.jacfwd(first)(X), expected)
    assert_close(tl.jet(first, (X,), ([V],))[1][0], expected @ V)
    assert_close(torch.autograd.functional.jacobian(first, X), expected)
    assert_close(tl.vmap(tl.jacrev(first))(torch.stack([X, -X]))[0], expected)


def test_a_recorded_jet_of_a_solution_has_its_derivative():
    """The other results of the solve, its LU decomposition, have none."""
    f = SOLVED["solve"]
    recorded = make_fx(lambda x: tl.jet(f, (x,), ([V],))[1][0])(X)
    assert_close(tl.jacrev(recorded)(X), tl.jacfwd(along(f, 1))(X))
