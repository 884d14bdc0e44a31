"""Solutions and their derivatives, beside those of optimistix, lineax and jaxopt."""

import numpy as np
import pytest
import torch

import torchlayers as tl
from tests.packages import package
from torchlayers.implicit import find_fixed_point, find_root, least_squares, linear_solve, minimize

jax = package("jax")
jnp = package("jax.numpy")
optx = package("optimistix")
lx = package("lineax")
jaxopt = package("jaxopt")
jax.config.update("jax_enable_x64", True)

A = np.array([0.3, -0.5, 0.8])
W = np.array([[0.3, -0.2, 0.1], [0.4, 0.1, -0.3], [-0.1, 0.2, 0.25]])
TIMES = np.linspace(0, 1, 7)
BATCH = np.stack([A, 2 * A, A[::-1]])
MATRIX = W @ W.T + np.eye(3)
tight = {"rtol": 1e-12, "atol": 1e-12}


def energy(x, a, weight):
    return (x**4).sum() / 4 + ((weight.T @ x) ** 2).sum() / 2 + (x**2).sum() / 2 - a @ x


def residuals(x, a, times, exp):
    return x[0] * exp(-x[1] * times) + x[2] * times - (a[0] + a[1] * times + a[2] * times**3)


def equation(x, a, weight):
    return x**3 + weight @ x + x - a


MINIMIZERS = {
    "bfgs": lambda f, x, a: optx.minimise(f, optx.BFGS(**tight), x, args=a).value,
    "lbfgs": lambda f, x, a: jaxopt.LBFGS(f, tol=1e-12).run(x, a).params,
    "cg": lambda f, x, a: jaxopt.NonlinearCG(f, tol=1e-12).run(x, a).params,
}
SQUARES = {
    "lm": optx.LevenbergMarquardt(**tight),
    "dogleg": optx.Dogleg(**tight),
    "gauss_newton": optx.GaussNewton(**tight),
}
ROOTS = {"newton": optx.Newton(**tight), "lm": optx.LevenbergMarquardt(**tight)}


def pair_of(kind, method):
    if kind == "minimize":
        return (
            lambda a: (
                minimize(lambda x: energy(x, a, torch.tensor(W)), torch.zeros_like(a), method).value
            ),
            lambda a: MINIMIZERS[method](lambda x, a: energy(x, a, W), jnp.zeros(3), a),
        )
    if kind == "least_squares":
        start = np.array([0.5, 1.0, 0.0])
        return (
            lambda a: (
                least_squares(
                    lambda x: residuals(x, a, torch.tensor(TIMES), torch.exp),
                    torch.tensor(start),
                    method,
                ).value
            ),
            lambda a: (
                optx.least_squares(
                    lambda x, a: residuals(x, a, TIMES, jnp.exp),
                    SQUARES[method],
                    jnp.array(start),
                    args=a,
                ).value
            ),
        )
    if kind == "find_root":
        return (
            lambda a: (
                find_root(
                    lambda x: equation(x, a, torch.tensor(W)), torch.zeros_like(a), method
                ).value
            ),
            lambda a: (
                optx.root_find(
                    lambda x, a: equation(x, a, W), ROOTS[method], jnp.zeros(3), args=a
                ).value
            ),
        )
    return (
        lambda a: (
            find_fixed_point(
                lambda x: torch.tanh(torch.tensor(W) @ x + a), torch.zeros_like(a), method
            ).value
        ),
        lambda a: (
            optx.fixed_point(
                lambda x, a: jnp.tanh(W @ x + a),
                optx.FixedPointIteration(**tight),
                jnp.zeros(3),
                args=a,
            ).value
        ),
    )


CASES = [
    *(("minimize", method) for method in MINIMIZERS),
    *(("least_squares", method) for method in SQUARES),
    *(("find_root", method) for method in ROOTS),
    ("find_fixed_point", "anderson"),
]


def assert_alike(ours, theirs, rtol=1e-6, atol=1e-7):
    np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), rtol=rtol, atol=atol)


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_solutions_and_derivatives(kind, method):
    ours, theirs = pair_of(kind, method)
    assert_alike(ours(torch.tensor(A)), theirs(jnp.array(A)))
    assert_alike(tl.vmap(ours)(torch.tensor(BATCH)), jax.vmap(theirs)(jnp.array(BATCH)))
    assert_alike(tl.jacrev(ours)(torch.tensor(A)), jax.jacrev(theirs)(jnp.array(A)), 1e-5, 1e-6)


TAGS = {
    "positive_definite": (MATRIX, lx.positive_semidefinite_tag),
    "lower_triangular": (np.tril(MATRIX), lx.lower_triangular_tag),
    "upper_triangular": (np.triu(MATRIX), lx.upper_triangular_tag),
    "tridiagonal": (np.triu(np.tril(MATRIX, 1), -1), lx.tridiagonal_tag),
    "diagonal": (np.diag(np.diag(MATRIX)), lx.diagonal_tag),
}


@pytest.mark.parametrize("tag", TAGS)
def test_systems_with_tags(tag):
    matrix, of_lineax = TAGS[tag]

    def theirs(b):
        return lx.linear_solve(lx.MatrixLinearOperator(jnp.array(matrix), of_lineax), b).value

    def ours(b):
        return linear_solve(torch.tensor(matrix), b, tags=tag).value

    assert_alike(ours(torch.tensor(A)), theirs(jnp.array(A)))
    assert_alike(tl.jacrev(ours)(torch.tensor(A)), jax.jacrev(theirs)(jnp.array(A)))


def test_least_squares_of_a_tall_matrix():
    tall = np.vander(TIMES, 3)
    b = np.cos(5 * TIMES)

    def theirs(matrix):
        return lx.linear_solve(lx.MatrixLinearOperator(matrix), jnp.array(b), lx.QR()).value

    for method in ("qr", "lsmr", "normal_cg"):

        def ours(matrix, method=method):
            return linear_solve(matrix, torch.tensor(b), method).value

        assert_alike(ours(torch.tensor(tall)), theirs(jnp.array(tall)))
        result = tl.jacrev(ours)(torch.tensor(tall))
        assert_alike(result, jax.jacrev(theirs)(jnp.array(tall)), 1e-5, 1e-6)
