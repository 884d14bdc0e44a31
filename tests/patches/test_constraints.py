"""torch.distributions' checks of matrices that differ between samples."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Wishart, constraints, kl_divergence

import torchlayers as tl

X = torch.tensor([[0.7, 0.4], [0.9, 0.5]], dtype=torch.float64)
EYE = torch.eye(2, dtype=torch.float64)

DENSITIES = {
    "covariance": lambda x: MultivariateNormal(x, torch.diag(x) + 0.1).log_prob(x.sin()),
    "precision": lambda x: MultivariateNormal(x, precision_matrix=torch.diag(x) + 0.1).log_prob(
        x.sin()
    ),
    "Wishart": lambda x: Wishart(torch.tensor(5.0).to(x), torch.diag(x)).log_prob(EYE),
    "divergence": lambda x: kl_divergence(
        MultivariateNormal(x, torch.diag(x)), MultivariateNormal(x, EYE)
    ),
}


@pytest.mark.parametrize("density", DENSITIES.values(), ids=DENSITIES)
@pytest.mark.parametrize("transform", [lambda f: f, tl.grad, tl.laplacian])
def test_each_sample_is_as_it_is_alone(density, transform):
    f = transform(density)
    torch.testing.assert_close(tl.vmap(f)(X), torch.stack([f(x) for x in X]))


MATRICES = torch.stack([EYE, -EYE, EYE + torch.tensor([[0.0, 1.0], [0.0, 0.0]]), EYE * 0])


@pytest.mark.parametrize("kind", [constraints.positive_definite, constraints.positive_semidefinite])
def test_the_check_is_torchs(kind):
    expected = torch.stack([kind.check(matrix) for matrix in MATRICES])
    assert torch.equal(tl.vmap(kind.check)(MATRICES), expected)
    checks = []
    tl.grad(lambda x: checks.append([kind.check(m * x) for m in MATRICES]) or x)(torch.ones(()))
    assert [bool(check) for check in checks[0]] == expected.tolist()


def test_a_sample_that_is_not_definite_is_an_error():
    def density(matrix):
        return MultivariateNormal(matrix[0], matrix, validate_args=True).log_prob(matrix[0])

    with pytest.raises(ValueError, match="PositiveDefinite"):
        tl.vmap(density)(MATRICES)
