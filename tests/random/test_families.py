"""Families of distributions made of others: their distribution, batches and derivatives."""

import math

import pytest
import torch
from scipy import stats

import torchlayers as tl
from torchlayers import random
from torchlayers.errors import TransformError

K = random.key(0)
F64 = torch.float64
N = (100,)

# Functions that draw 100 float64 numbers by a key, with their distribution.
CONTINUOUS = {
    "chisquare": (lambda k: random.chisquare(k, 3.0, N, F64), stats.chi2(3)),
    "f": (lambda k: random.f(k, 3.0, 5.0, N, F64), stats.f(3, 5)),
    "generalized_normal": (lambda k: random.generalized_normal(k, 3.0, N, F64), stats.gennorm(3)),
    "loggamma": (lambda k: random.loggamma(k, 0.3, N, F64), stats.loggamma(0.3)),
    "loggamma above one": (lambda k: random.loggamma(k, 4.0, N, F64), stats.loggamma(4)),
    "lognormal": (lambda k: random.lognormal(k, 0.7, N, F64), stats.lognorm(0.7)),
    "maxwell": (lambda k: random.maxwell(k, N, F64), stats.maxwell()),
    "double_sided_maxwell": (
        lambda k: (random.double_sided_maxwell(k, 1.0, 2.0, N, F64) - 1).abs() / 2,
        stats.maxwell(),
    ),
    "pareto": (lambda k: random.pareto(k, 2.5, N, F64), stats.pareto(2.5)),
    "rayleigh": (lambda k: random.rayleigh(k, 1.5, N, F64), stats.rayleigh(scale=1.5)),
    "triangular": (
        lambda k: random.triangular(k, -1.0, 0.5, 2.0, N, F64),
        stats.triang(0.5, -1, 3),
    ),
    "triangular from its mode": (
        lambda k: random.triangular(k, 0.0, 0.0, 2.0, N, F64),
        stats.triang(0, 0, 2),
    ),
    "wald": (lambda k: random.wald(k, 3.0, N, F64), stats.invgauss(3)),
    "weibull_min": (
        lambda k: random.weibull_min(k, 2.0, 0.8, N, F64),
        stats.weibull_min(0.8, scale=2),
    ),
    "a coordinate of a ball": (
        lambda k: random.ball(k, 3, 2, N, F64)[:, 0],
        stats.beta(2, 2, -1, 2),
    ),
    "the norm in a ball of 1-norm": (
        lambda k: random.ball(k, 3, 1.0, N, F64).abs().sum(-1),
        stats.beta(3, 1),
    ),
    "an entry of an orthogonal matrix": (
        lambda k: random.orthogonal(k, 4, N, F64)[:, 1, 2],
        stats.beta(1.5, 1.5, -1, 2),
    ),
    "the trace of an orthogonal 2 by 2 matrix's second half": (
        lambda k: random.orthogonal(k, 4, N, F64, m=2)[:, 3, 1],
        stats.beta(1.5, 1.5, -1, 2),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_follow_the_distribution(name):
    """The Kolmogorov-Smirnov test, for consecutive keys."""
    draw, expected = CONTINUOUS[name]
    numbers = tl.vmap(draw)(torch.arange(500))
    assert stats.kstest(numbers.flatten().numpy(), expected.cdf).pvalue > 0.001


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_sample_of_a_batch_is_drawn_by_its_key_alone(name):
    draw, _ = CONTINUOUS[name]
    keys = random.split(K, 3)
    torch.testing.assert_close(tl.vmap(draw)(keys)[1], draw(keys[1]), rtol=1e-12, atol=1e-14)


COUNTS = {
    "geometric": lambda k: random.geometric(k, 0.3, N),
    "rademacher": lambda k: random.rademacher(k, N),
    "multinomial": lambda k: random.multinomial(k, 7, torch.tensor([1.0, 2.0, 0.0, 3.0]), N),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_sample_of_counts_is_drawn_by_its_key_alone(name):
    keys = random.split(K, 3)
    assert torch.equal(tl.vmap(COUNTS[name])(keys)[1], COUNTS[name](keys[1]))


def frequencies(numbers, probabilities):
    counts = torch.bincount(numbers.flatten(), minlength=len(probabilities))[: len(probabilities)]
    rest = numbers.numel() - counts.sum()
    expected = torch.tensor(probabilities, dtype=F64) * numbers.numel()
    both = [*counts.tolist(), int(rest)], [*expected.tolist(), numbers.numel() - expected.sum()]
    pairs = [(a, float(b)) for a, b in zip(*both, strict=True) if b > 1e-6]
    return stats.chisquare(*zip(*pairs, strict=True)).pvalue


def test_counts_follow_the_distribution():
    trials = random.geometric(K, 0.3, (100_000,))
    assert frequencies(trials, [0.0, *(0.3 * 0.7**i for i in range(12))]) > 0.001
    assert frequencies(random.rademacher(K, (100_000,)) + 1, [0.5, 0, 0.5]) > 0.001
    p = torch.tensor([1.0, 2.0, 0.0, 3.0])
    draws = random.multinomial(K, 7, p, (50_000,))
    assert (draws.sum(-1) == 7).all()
    assert (draws[:, 2] == 0).all()
    for i, share in ((0, 1 / 6), (1, 1 / 3), (3, 1 / 2)):
        assert frequencies(draws[:, i], stats.binom(7, share).pmf(range(8)).tolist()) > 0.001
    together = draws.double().T.cov()
    torch.testing.assert_close(
        together[0, 3], torch.tensor(-7 / 6 * 3 / 6, dtype=F64), rtol=0.1, atol=0
    )


@pytest.mark.parametrize(
    "draw",
    [
        lambda p: random.lognormal(K, p, (5,)),
        lambda p: random.pareto(K, p, (5,)),
        lambda p: random.rayleigh(K, p, (5,)),
        lambda p: random.weibull_min(K, 2 * p, p, (5,)),
        lambda p: random.triangular(K, -p, p / 2, p * p, (50,)),
        lambda p: random.double_sided_maxwell(K, p, 3 * p, (5,)),
        lambda p: random.wald(K, p, (5,)),
    ],
)
def test_numbers_are_differentiable_by_their_parameters(draw):
    p, step = torch.tensor(1.3, dtype=F64), 1e-6
    expected = (draw(p + step) - draw(p - step)) / (2 * step)
    assert expected.dtype == F64  # the parameter's
    torch.testing.assert_close(tl.jacfwd(draw)(p), expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(tl.jacrev(draw)(p), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("draw", "moment", "slope"),
    [  # of the mean by the parameter
        (random.chisquare, lambda x: x, lambda p: 1.0),
        (
            random.loggamma,
            lambda x: x,
            lambda p: float(torch.special.polygamma(1, torch.tensor(p))),
        ),
        (
            lambda k, p, n, t: random.f(k, 3.0, p + 6, n, t),
            lambda x: x,
            lambda p: -2 / (p + 4) ** 2,
        ),
        (random.generalized_normal, lambda x: x.abs(), None),
    ],
)
def test_numbers_made_of_gamma_ones_are_differentiable(draw, moment, slope):
    p = torch.tensor(2.0, dtype=F64)

    def mean(p):
        return moment(draw(K, p, (200_000,), F64)).mean()

    def exact(p):  # the mean of the absolute value
        return math.gamma(2 / p) / math.gamma(1 / p)

    expected = slope(2.0) if slope else (exact(2.0 + 1e-5) - exact(2.0 - 1e-5)) / 2e-5
    torch.testing.assert_close(float(tl.grad(mean)(p)), expected, rtol=0.03, atol=0)


def test_logarithms_of_small_gamma_numbers_are_finite():
    numbers = random.loggamma(K, torch.full((1000,), 1e-3))
    assert numbers.dtype == torch.float32
    assert numbers.isfinite().all()
    assert numbers.min() < -200  # where a gamma number would be zero
    assert random.loggamma(K, -1.0).isnan()


def test_orthogonal_matrices():
    for n, m in ((4, 4), (5, 2), (2, 5)):
        q = random.orthogonal(K, n, (3,), F64, m=m)
        assert q.shape == (3, n, m)
        smaller = q.mT @ q if n >= m else q @ q.mT
        torch.testing.assert_close(smaller, torch.eye(min(n, m), dtype=F64).expand_as(smaller))


def test_a_negative_sign_is_as_likely():
    x = random.double_sided_maxwell(K, 0.0, 1.0, (10_000,))
    assert abs((x > 0).double().mean() - 0.5) < 0.02
    assert abs((random.generalized_normal(K, 3.0, (10_000,)) > 0).double().mean() - 0.5) < 0.02


def test_shapes_and_invalid_parameters():
    assert random.f(K, torch.ones(3, 1), torch.ones(4)).shape == (3, 4)
    assert random.multinomial(K, torch.tensor([3, 4]), torch.ones(2, 5)).sum(-1).tolist() == [3, 4]
    assert random.multinomial(K, -1, torch.ones(2)).tolist() == [-1, -1]
    assert random.geometric(K, torch.tensor([0.0, 1.5, 1.0, 1e-300])).tolist()[:3] == [-1, -1, 1]
    assert random.ball(K, 3, shape=(0,)).shape == (0, 3)
    assert random.pareto(K, torch.tensor(2.0), (3,), torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(TransformError, match="b of shape"):
        random.pareto(K, torch.ones(3), (4,))
    with pytest.raises(TransformError, match=r"random\.rademacher|random\.bernoulli"):
        random.rademacher(3, (4,))
