"""Poisson and binomial numbers: their distribution, and what they depend on."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import torchlayers as tl
from torchlayers import random

K = random.key(0)
RATES = [0.3, 3.0, 9.9, 10.0, 37.0, 1000.0, 1e6]
TRIALS = [(5, 0.3), (30, 0.2), (30, 0.8), (20, 0.5), (100, 0.1), (100, 0.5), (1000, 0.999)]
TRIALS += [(10**6, 1e-6), (10**6, 0.3), (10**12, 0.4)]


def p_value(numbers, expected):
    """The p-value of a chi-squared test, over at most 30 ranges that hold nearly all numbers."""
    low, high = (int(expected.ppf(tail)) for tail in (0.001, 0.999))
    ends = np.unique(np.linspace(low, high, min(30, high - low + 1)).astype(np.int64))
    found = np.bincount(np.searchsorted(ends, numbers), minlength=len(ends) + 1)
    wanted = np.diff([0, *expected.cdf(ends), 1]) * len(numbers)
    is_large = wanted > 5
    scale = found[is_large].sum() / wanted[is_large].sum()
    return stats.chisquare(found[is_large], wanted[is_large] * scale).pvalue


@pytest.mark.parametrize("rate", RATES)
def test_million_poisson_numbers_follow_the_distribution(rate):
    numbers = tl.vmap(lambda key: random.poisson(key, rate, (100,)))(torch.arange(10_000))
    assert p_value(numbers.flatten().numpy(), stats.poisson(rate)) > 0.001


@pytest.mark.parametrize(("count", "prob"), TRIALS)
def test_million_binomial_numbers_follow_the_distribution(count, prob):
    numbers = tl.vmap(lambda key: random.binomial(key, count, prob, (100,)))(torch.arange(10_000))
    assert numbers.min() >= 0
    assert numbers.max() <= count
    assert p_value(numbers.flatten().numpy(), stats.binom(count, prob)) > 0.001


DRAWS = {
    "poisson": lambda key, x: random.poisson(key, 40 * x),
    "binomial": lambda key, x: random.binomial(key, 50, x),
}
draws = pytest.mark.parametrize("name", DRAWS)


@draws
def test_neighbouring_keys_are_unrelated(name):
    numbers = tl.vmap(DRAWS[name])(torch.arange(100_000), torch.full((100_000,), 0.6)).double()
    assert torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))[0, 1].abs() < 0.015


@draws
def test_a_number_depends_on_its_key_and_place_alone(name):
    torch.manual_seed(0)
    keys, x = random.split(K, 5), torch.rand(5, 7)
    together = tl.vmap(DRAWS[name])(keys, x)
    assert together.dtype == torch.int64
    for i in range(5):
        assert torch.equal(together[i], DRAWS[name](keys[i], x[i]))
        assert torch.equal(tl.vmap(DRAWS[name], in_dims=(0, None))(keys, x[0])[i],
                           DRAWS[name](keys[i], x[0]))  # fmt: skip
    assert torch.equal(tl.vmap(DRAWS[name], in_dims=(None, 0))(K, x)[2], DRAWS[name](K, x[2]))
    assert torch.equal(DRAWS[name](keys[0], x[0].expand(9, 7))[0], together[0])


PARAMETERS = {
    "poisson": ([0.0, 0.5, 5.0, 9.99, 12.0, 100.0, 1e5, math.nan, -1.0, math.inf],),
    "binomial": (
        [0.0, 1.0, 5.0, 30.0, 30.0, 100.0, 1e5, 40.0, -1.0, 10.0, 10.0],
        [0.3, 1.0, 0.9, 0.1, 0.5, 0.7, 0.0, 0.5, 0.5, 1.1, math.nan],
    ),
}


@draws
def test_tensor_kernel_gives_the_same_numbers(name):
    """The kernel for other devices, called on the CPU."""
    keys = random.split(K, 3)
    given = [torch.tensor(row).double().repeat(3, 50) for row in PARAMETERS[name]]
    call = getattr(torch.ops.torchlayers, f"random_{name}").default
    kernel = torch.library.get_kernel(call, "CUDA")
    keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    ours, theirs = call(keys, *given), kernel.call_boxed(keyset, keys, *given)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0, equal_nan=True)
    assert ours[0].isnan().sum() == 150


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_no_distribution_gives_minus_one(rate):
    assert random.poisson(K, rate) == -1
    assert random.binomial(K, 3, rate) == -1
    assert random.binomial(K, rate, 0.5) == -1


def test_dtypes_and_shapes():
    assert random.poisson(K, 3.0, (2, 0), torch.float32).shape == (2, 0)
    assert random.poisson(K, torch.ones(2, 1), (2, 3), torch.int32).dtype == torch.int32
    assert random.binomial(K, torch.tensor([[3], [4]]), torch.rand(5)).shape == (2, 5)
    with torch.device("meta"):
        key = torch.empty((), dtype=torch.int64)
    assert random.binomial(key, 4, 0.5, (3,)).shape == (3,)


@draws
def test_counts_are_constants_to_every_derivative(name):
    x = torch.full((4,), 0.6)

    def f(x):
        return DRAWS[name](K, x).float() * x.sum()

    numbers = DRAWS[name](K, x)
    expected = numbers.sum().expand(4).float()
    torch.testing.assert_close(tl.grad(lambda x: f(x).sum())(x), expected)
    torch.testing.assert_close(tl.jvp(f, (x,), (torch.ones(4),))[1], numbers * 4.0)
    torch.testing.assert_close(torch.func.jvp(f, (x,), (torch.ones(4),))[1], numbers * 4.0)
    plain = x.clone().requires_grad_()
    f(plain).sum().backward()
    torch.testing.assert_close(plain.grad, expected)


@pytest.mark.sweep
@draws
def test_torch_compile_draws_the_same(name):
    x = torch.rand(5)
    assert torch.equal(torch.compile(DRAWS[name], backend="eager")(K, x), DRAWS[name](K, x))
    compiled = tl.compile(tl.vmap(DRAWS[name], in_dims=(None, 0)))
    assert torch.equal(compiled(K, x), tl.vmap(DRAWS[name], in_dims=(None, 0))(K, x))


@pytest.mark.parametrize("distribution", ["Poisson", "Binomial"])
def test_torch_distributions_sample_by_the_key(distribution):
    def sample(x):
        if distribution == "Poisson":
            return torch.distributions.Poisson(x * 30).sample()
        return torch.distributions.Binomial(20, x).sample()

    x = torch.rand(6, 50)
    state = torch.get_rng_state()
    numbers = tl.vmap(sample, randomness="keyed", key=K)(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert (numbers.dtype, numbers.shape) == (torch.float32, (6, 50))
    for i in range(6):
        assert torch.equal(numbers[i], tl.seeded(sample, random.fold_in(K, i))(x[i]))
