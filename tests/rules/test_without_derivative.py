"""Functions that torch marks as not differentiable, although they are: no silent zeros."""

import pytest
import torch

import torchlayers as tl

X = torch.tensor([0.5, 1.3], dtype=torch.float64)
ONE = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
]
OF_DEGREE = [
    *(f"chebyshev_polynomial_{kind}" for kind in "tuvw"),
    *(f"shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]


def call(name, x):
    rest = (3,) if name in OF_DEGREE else ()
    return getattr(torch.special, name)(x, *rest)


def has_derivative(name):
    """Whether this torch has one: 2.15 has those of some."""
    return call(name, X.clone().requires_grad_()).requires_grad


WITHOUT = [name for name in (*ONE, *OF_DEGREE) if not has_derivative(name)]
NESTS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: tl.jvp(f, (X,), (X,)),
    "vmap of grad": lambda f: tl.vmap(tl.grad(f))(X),
    "hessian": lambda f: tl.hessian(lambda x: (x * f(x)).sum())(X),
    "jet": lambda f: tl.jet(f, (X,), ([X, None],)),
    "linearize": lambda f: tl.linearize(f, X)[1](X),
}


@pytest.mark.parametrize("nest", NESTS)
def test_the_derivative_is_refused(nest):
    for name in WITHOUT:
        with pytest.raises(NotImplementedError, match=f"can't differentiate .*special_{name}"):
            NESTS[nest](lambda x, name=name: call(name, x))


def test_values_and_what_is_detached_are_as_they_were():
    def f(x):
        return torch.special.bessel_j0(x.detach()) * x

    values = torch.special.bessel_j0(X)
    torch.testing.assert_close(tl.vmap(torch.special.bessel_j0)(X), values)
    torch.testing.assert_close(tl.grad(lambda x: f(x).sum())(X), values)
    torch.testing.assert_close(tl.jvp(f, (X,), (torch.ones_like(X),))[1], values)


def test_torch_has_a_derivative_of_few_of_them():
    assert {*ONE, *OF_DEGREE} - {*WITHOUT} <= {name for name in ONE if "bessel" in name}
