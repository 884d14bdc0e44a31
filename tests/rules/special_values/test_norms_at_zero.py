"""Norms at zero: the first derivative is the subgradient zero, and there is no second derivative.

Second derivatives are nan in every nest. No finite number would be right for functions of the norm
in general: |x|^2 has 2 there, and cos |x| has -1.
"""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

ZERO = torch.zeros(2, dtype=torch.float64)
LINE = torch.zeros_like(ZERO)


def of_complex(f):
    return lambda x: f(torch.complex(x[0], x[1]))


NORMS = {
    "norm": torch.norm,
    "square of a norm": lambda x: x.norm() ** 2,
    "cosine of a norm": lambda x: x.norm().cos(),
    "vector_norm": torch.linalg.vector_norm,
    "vector_norm of order 3": lambda x: torch.linalg.vector_norm(x, 3),
    "vector_norm of order 1.5": lambda x: torch.linalg.vector_norm(x, 1.5),
    "vector_norm of order 0.5": lambda x: torch.linalg.vector_norm(x, 0.5),
    "vector_norm along a dimension": lambda x: torch.linalg.vector_norm(x, dim=0, keepdim=True)[0],
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x.view(1, 2)),
    "norm.Scalar": lambda x: torch.ops.aten.norm.Scalar(x, 2),
    "dist": lambda x: torch.dist(x, LINE),
    "dist of order 3": lambda x: torch.dist(x, LINE, 3),
    "pdist": lambda x: F.pdist(torch.stack([x, LINE]))[0],
    "pdist of order 3": lambda x: F.pdist(torch.stack([x, LINE]), 3)[0],
    "pairwise_distance": lambda x: F.pairwise_distance(x, LINE, eps=0),
    "std": torch.std,
    "std_mean": lambda x: torch.std_mean(x)[0],
    "abs of a complex number": of_complex(torch.abs),
    "angle of a complex number": of_complex(torch.angle),
    "sgn of a complex number": of_complex(lambda z: torch.view_as_real(torch.sgn(z)).sum()),
}
# They are piecewise linear, so their second derivatives are zero.
ANGULAR = {
    "vector_norm of order 1": lambda x: torch.linalg.vector_norm(x, 1),
    "vector_norm of infinite order": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "abs": lambda x: x.abs().sum(),
    "pdist of order 1": lambda x: F.pdist(torch.stack([x, LINE]), 1)[0],
}
FIRST = {"jacrev": tl.jacrev, "jacfwd": tl.jacfwd}
SECOND = {
    f"{outer} of {inner}": lambda f, outer=outer, inner=inner: FIRST[outer](FIRST[inner](f))
    for outer in FIRST
    for inner in FIRST
} | {"hessian": tl.hessian}


@pytest.mark.filterwarnings("ignore:.*batching rule")
@pytest.mark.parametrize("mode", FIRST)
@pytest.mark.parametrize("name", NORMS | ANGULAR)
def test_the_first_derivative_at_zero_is_zero(name, mode):
    f = (NORMS | ANGULAR)[name]
    assert (FIRST[mode](f)(ZERO) == 0).all()


@pytest.mark.filterwarnings("ignore:.*batching rule")
@pytest.mark.parametrize("nest", SECOND)
@pytest.mark.parametrize("name", NORMS)
def test_there_is_no_second_derivative_at_zero(name, nest):
    assert SECOND[nest](NORMS[name])(ZERO).isnan().all()


@pytest.mark.filterwarnings("ignore:.*batching rule")
@pytest.mark.parametrize("nest", SECOND)
@pytest.mark.parametrize("name", ANGULAR)
def test_piecewise_linear_norm_has_a_second_derivative_of_zero(name, nest):
    assert (SECOND[nest](ANGULAR[name])(ZERO) == 0).all()


@pytest.mark.parametrize("nest", [nest for nest in SECOND if nest != "jacfwd of jacfwd"])
def test_the_gradient_by_a_row_of_zeros_has_no_derivative_and_that_by_others_has(nest):
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    second = SECOND[nest](lambda x: x.norm(dim=1).sum())(rows)
    assert second[0, :, 0].isnan().all()
    expected = torch.tensor([[16.0, -12.0], [-12.0, 9.0]], dtype=torch.float64) / 125
    torch.testing.assert_close(second[1, :, 1], expected)


@pytest.mark.parametrize("nest", SECOND)
def test_cdist_treats_coinciding_rows_as_identical(nest):
    """Most rows coincide: a row's distance from itself is zero for all its values."""
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    second = SECOND[nest](lambda x: torch.cdist(x, x).sum())(rows)
    apart = SECOND[nest](lambda x: 2 * (x[0] - x[1]).norm())(rows)
    torch.testing.assert_close(second, apart)


@pytest.mark.parametrize("nest", SECOND)
@pytest.mark.parametrize("exponent", [1.0, 1.5, 3.0])
def test_the_slope_by_an_exponent_has_no_derivative_by_a_base_of_zero(exponent, nest):
    given = torch.tensor([0.0, exponent], dtype=torch.float64)
    second = SECOND[nest](lambda x: torch.pow(x[0], x[1]))(given)
    assert second[1, 0].isnan()


NONE = torch.zeros(2, 0, dtype=torch.float64)
NORMS_OF_NONE = {
    "norm": torch.norm,
    "vector_norm along a dimension": lambda x: torch.linalg.vector_norm(x, dim=1),
    "vector_norm of order 3": lambda x: torch.linalg.vector_norm(x, 3),
    "dist": lambda x: torch.dist(x, x + 1),
    "pdist": F.pdist,
    "cdist": lambda x: torch.cdist(x, x),
}


@pytest.mark.parametrize("name", NORMS_OF_NONE)
def test_a_norm_of_no_elements_is_constant(name):
    def derivative(f):
        return lambda x: tl.jvp(f, (x,), (torch.ones_like(x),))[1]

    assert (derivative(derivative(NORMS_OF_NONE[name]))(NONE) == 0).all()
