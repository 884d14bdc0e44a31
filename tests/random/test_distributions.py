"""Distributions: their shape, and their dependence on parameters and on nothing else."""

import math

import mpmath
import pytest
import torch
from scipy import stats
from torch.autograd import forward_ad

import torchlayers as tl
from torchlayers import random
from torchlayers.errors import TransformError

K = random.key(0)
N = 100_000

# Functions that draw 100 float64 numbers by a key, with their distribution.
CONTINUOUS = {
    "uniform": (lambda k: random.uniform(k, 100, torch.float64), stats.uniform()),
    "uniform in a range": (
        lambda k: random.uniform(k, 100, torch.float64, -2.0, 3.0),
        stats.uniform(-2, 5),
    ),
    "normal": (lambda k: random.normal(k, 100, torch.float64), stats.norm()),
    "exponential": (lambda k: random.exponential(k, 100, torch.float64), stats.expon()),
    "gumbel": (lambda k: random.gumbel(k, 100, torch.float64), stats.gumbel_r()),
    "laplace": (lambda k: random.laplace(k, 100, torch.float64), stats.laplace()),
    "logistic": (lambda k: random.logistic(k, 100, torch.float64), stats.logistic()),
    "cauchy": (lambda k: random.cauchy(k, 100, torch.float64), stats.cauchy()),
    "gamma below one": (lambda k: random.gamma(k, 0.3, (100,), torch.float64), stats.gamma(0.3)),
    "gamma of one": (lambda k: random.gamma(k, 1.0, (100,), torch.float64), stats.gamma(1)),
    "gamma above one": (lambda k: random.gamma(k, 7.5, (100,), torch.float64), stats.gamma(7.5)),
    "beta": (lambda k: random.beta(k, 0.5, 2.0, (100,), torch.float64), stats.beta(0.5, 2)),
    "student_t": (lambda k: random.student_t(k, 3.0, (100,), torch.float64), stats.t(3)),
    "truncated_normal": (
        lambda k: random.truncated_normal(k, -1.0, 2.0, (100,), torch.float64),
        stats.truncnorm(-1, 2),
    ),
    "truncated_normal in a tail": (
        lambda k: random.truncated_normal(k, 5.0, 6.0, (100,), torch.float64),
        stats.truncnorm(5, 6),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CONTINUOUS)
def test_million_numbers_of_ten_thousand_keys_follow_the_distribution(name):
    """The Kolmogorov-Smirnov test, for consecutive keys."""
    draw, expected = CONTINUOUS[name]
    numbers = tl.vmap(draw)(torch.arange(10_000))
    assert numbers.shape == (10_000, 100)
    assert stats.kstest(numbers.flatten().numpy(), expected.cdf).pvalue > 0.001


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_numbers_follow_the_distribution_up_to_rounding(name, dtype):
    _, expected = CONTINUOUS[name]
    keys = torch.arange(1000)
    numbers = tl.vmap(lambda key: getattr(random, name)(key, 1000, dtype))(keys)
    far = stats.kstest(numbers.flatten().double().numpy(), expected.cdf).statistic
    assert far < 0.002 + torch.finfo(dtype).eps / 2


def correlation(x, y):
    return torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1].abs().item()


@pytest.mark.parametrize(
    "keys",
    [
        torch.arange(10_001),
        torch.arange(10_001) << 32,
        random.split(K, 10_001),
        tl.vmap(random.split)(torch.arange(5000)).flatten(),
        tl.vmap(lambda key: random.fold_in(key, 1))(torch.arange(10_001)),
    ],
    ids=["neighbours", "in the upper half", "siblings", "twins", "folded"],
)
def test_keys_that_are_next_to_each_other_are_unrelated(keys):
    numbers = tl.vmap(lambda key: random.normal(key, (100,), torch.float64))(keys)
    bound = 4 / math.sqrt(numbers[1:].numel())  # four standard deviations
    assert correlation(numbers[1:], numbers[:-1]) < bound
    assert correlation(numbers[:, 1:], numbers[:, :-1]) < bound
    assert correlation(numbers[1:] ** 2, numbers[:-1] ** 2) < bound


def test_a_child_is_unrelated_to_its_parent():
    seeds = torch.arange(10_000)
    of_parents = tl.vmap(lambda key: random.normal(key, (100,), torch.float64))
    of_children = tl.vmap(lambda key: random.normal(random.split(key)[0], (100,), torch.float64))
    assert correlation(of_parents(seeds), of_children(seeds)) < 4 / 1000


# Parameters


def test_uniform_numbers_stay_below_maxval():
    low, high = 1.0, 1.0 + 2 * torch.finfo(torch.float32).eps
    x = random.uniform(K, (N,), minval=low, maxval=high)
    assert x.min() == low
    assert x.max() < high


def test_parameters_broadcast_to_the_shape():
    low, high = torch.zeros(3, 1), torch.arange(1.0, 5.0)
    x = random.uniform(K, (3, 4), minval=low, maxval=high)
    assert (x < high).all()
    with pytest.raises(TransformError, match=r"maxval of shape \(4,\) does not broadcast"):
        random.uniform(K, (3, 5), maxval=high)
    with pytest.raises(TransformError, match="parameters' shapes don't broadcast"):
        random.beta(K, torch.ones(3), torch.ones(4))


def test_gamma_numbers_of_another_dtype_are_rounded():
    a = torch.tensor([0.2, 1.0, 9.0], dtype=torch.float64)
    exact = random.gamma(K, a)
    for dtype in (torch.float32, torch.bfloat16):
        torch.testing.assert_close(random.gamma(K, a, dtype=dtype), exact.to(dtype))


@pytest.mark.parametrize("a", [0.0, -1.0, math.nan, math.inf])
def test_gamma_of_no_shape_is_nan(a):
    assert random.gamma(K, a).isnan()
    assert torch.ops.torchlayers.random_gamma.default(K, torch.tensor(a)).isnan()


def test_tensor_kernel_gives_the_same_gamma_numbers():
    """The kernel for other devices, called on the CPU; their logarithms differ."""
    key = random.split(K, 3)
    alpha = torch.rand(3, 50, dtype=torch.float64) * 3
    call = torch.ops.torchlayers.random_gamma.default
    ours = call(key, alpha)
    kernel = torch.library.get_kernel(call, "CUDA")
    keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    torch.testing.assert_close(kernel.call_boxed(keyset, key, alpha), ours)


def test_a_gamma_number_depends_on_its_key_and_place_alone():
    keys = random.split(K, 5)
    a = torch.rand(5, 7) * 4
    together = tl.vmap(random.gamma)(keys, a)
    for i in range(5):
        assert torch.equal(together[i], random.gamma(keys[i], a[i]))
    assert torch.equal(tl.vmap(random.gamma, in_dims=(None, 0))(K, a)[2], random.gamma(K, a[2]))
    assert torch.equal(
        tl.vmap(random.gamma, in_dims=(0, None))(keys, a[0])[2], random.gamma(keys[2], a[0])
    )


def implicit(a, x):
    """The implicit derivative of the number with respect to its shape, by finite differences of the
    CDF."""
    step = 1e-5
    by_shape = (stats.gamma(a + step).cdf(x) - stats.gamma(a - step).cdf(x)) / (2 * step)
    return torch.from_numpy(-by_shape / stats.gamma(a).pdf(x))


@pytest.mark.parametrize("a", [0.4, 1.0, 3.0])
def test_gamma_numbers_are_differentiable_by_their_shape(a):
    alpha = torch.full((20,), a, dtype=torch.float64)
    expected = implicit(a, random.gamma(K, alpha).numpy())

    def f(alpha):
        return random.gamma(K, alpha)

    def close(found):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)

    close(tl.grad(lambda alpha: f(alpha).sum())(alpha))
    close(tl.jvp(f, (alpha,), (torch.ones_like(alpha),))[1])
    close(tl.jacrev(f)(alpha).diagonal())
    plain = alpha.clone().requires_grad_()
    f(plain).sum().backward()
    close(plain.grad)


def twice_implicit(a, x):
    """The second derivative, with respect to the shape, of the number at a fixed quantile."""
    with mpmath.workdps(40):
        share = mpmath.gammainc(a, 0, x, regularized=True)
        step = mpmath.mpf("1e-6")

        def moved(a):
            return mpmath.findroot(lambda t: mpmath.gammainc(a, 0, t, regularized=True) - share, x)

        return float((moved(a + step) - 2 * mpmath.mpf(x) + moved(a - step)) / step**2)


@pytest.mark.parametrize("a", [0.4, 0.7, 1.0, 3.0, 50.0])
def test_gamma_numbers_are_differentiable_twice(a):
    alpha = torch.full((8,), a, dtype=torch.float64)
    numbers = random.gamma(K, alpha)
    known = numbers > 0.01  # where mpmath finds the root
    expected = torch.tensor([twice_implicit(a, x) for x in numbers[known].tolist()]).double()

    def slope(alpha):
        return tl.grad(lambda alpha: random.gamma(K, alpha).sum())(alpha)

    def pushed(alpha):
        return tl.jvp(lambda alpha: random.gamma(K, alpha), (alpha,), (torch.ones_like(alpha),))[1]

    def close(found):  # torch's first derivative has four digits
        torch.testing.assert_close(found[known], expected, rtol=2e-3, atol=1e-4)

    close(tl.grad(lambda alpha: slope(alpha).sum())(alpha))
    close(tl.jvp(pushed, (alpha,), (torch.ones_like(alpha),))[1])
    each = tl.vmap(tl.grad(tl.grad(lambda a, e: (random.gamma(K, a.expand(8)) * e).sum())))
    close(each(alpha, torch.eye(8, dtype=torch.float64)))
    plain = alpha.clone().requires_grad_()
    (first,) = torch.autograd.grad(random.gamma(K, plain).sum(), plain, create_graph=True)
    close(torch.autograd.grad(first.sum(), plain)[0])


@pytest.mark.parametrize("draw", [random.gamma, lambda k, a: random.beta(k, a, 2.0)])
def test_tangents_outside_layers_are_those_inside(draw):
    a = torch.tensor([0.7, 3.0], dtype=torch.float64)

    def f(a):
        return draw(K, a).sin()

    expected = tl.jvp(f, (a,), (a,))[1]
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(a, a))).tangent
        recorded = a.clone().requires_grad_()
        dual = forward_ad.unpack_dual(f(forward_ad.make_dual(recorded, a)))
        (second,) = torch.autograd.grad(dual.tangent.sum(), recorded)
    torch.testing.assert_close(tangent, expected)
    torch.testing.assert_close(torch.func.jvp(f, (a,), (a,))[1], expected)
    torch.testing.assert_close(second, tl.grad(lambda x: tl.jvp(f, (x,), (a,))[1].sum())(a))
    twice = torch.func.jacfwd(torch.func.jacfwd(f))(a)
    torch.testing.assert_close(twice, tl.jacfwd(tl.jacrev(f))(a))


def test_other_numbers_are_differentiable_by_their_parameters():
    low = torch.tensor(-0.5, dtype=torch.float64)
    for draw in (
        lambda p: random.uniform(K, (5,), torch.float64, minval=p, maxval=2.0),
        lambda p: random.truncated_normal(K, p, 2.0, (5,), torch.float64),
        lambda p: random.truncated_normal(K, p + 3, 5.0, (5,), torch.float64),
        lambda p: random.multivariate_normal(K, p.expand(3), torch.eye(3).double() * (2 + p)),
    ):
        step = 1e-6
        expected = (draw(low + step) - draw(low - step)) / (2 * step)
        found = tl.jvp(draw, (low,), (torch.ones_like(low),))[1]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(tl.jacrev(draw)(low), expected, rtol=1e-6, atol=1e-8)


def test_vectors_have_their_covariance():
    cov = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
    mean = torch.tensor([1.0, -1.0], dtype=torch.float64)
    x = random.multivariate_normal(K, mean, cov, (N,))
    torch.testing.assert_close(x.mean(0), mean, atol=0.02, rtol=0)
    torch.testing.assert_close(x.T.cov(), cov, atol=0.03, rtol=0)


def test_dirichlet_numbers_add_up_to_one():
    alpha = torch.tensor([0.5, 1.0, 3.0])
    x = random.dirichlet(K, alpha, (N,))
    torch.testing.assert_close(x.sum(-1), torch.ones(N))
    torch.testing.assert_close(x.mean(0), alpha / alpha.sum(), atol=0.005, rtol=0)


@pytest.mark.parametrize("name", ["exponential", "gumbel", "laplace", "logistic", "cauchy"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_are_finite(name, dtype):
    numbers = getattr(random, name)(K, (500_000,), dtype)
    assert numbers.dtype == dtype
    assert numbers.isfinite().all()


def test_an_empty_shape_has_no_numbers():
    for draw in (random.uniform, random.normal, random.exponential):
        assert draw(K, (0, 3)).shape == (0, 3)
    assert random.gamma(K, torch.ones(0)).shape == (0,)
    assert random.categorical(K, torch.zeros(0, 3)).shape == (0,)
    assert random.permutation(K, 0).shape == (0,)


# Integers and choices


def frequencies_fit(found, probabilities):
    counts = torch.bincount(found.flatten(), minlength=len(probabilities)).double()
    assert len(counts) == len(probabilities)
    expected = torch.as_tensor(probabilities, dtype=torch.float64)
    expected = expected / expected.sum() * found.numel()
    likely = expected > 0
    assert (counts[~likely] == 0).all()
    assert stats.chisquare(counts[likely].numpy(), expected[likely].numpy()).pvalue > 0.001


def test_randint_values_are_equally_likely():
    x = tl.vmap(lambda key: random.randint(key, (100,), 0, 7))(torch.arange(1000))
    frequencies_fit(x, [1 / 7] * 7)


def test_randint_in_ranges():
    assert set(random.randint(K, (100,), -3, -1).tolist()) == {-3, -2}
    assert random.randint(K, (3,), 5, 5).tolist() == [5, 5, 5]
    wide = random.randint(K, (1000,), -(2**62), 2**62 - 1)
    assert wide.min() < -(2**61) and wide.max() > 2**61
    ends = random.randint(
        K, (3, 1000), torch.tensor([[0], [5], [-9]]), torch.tensor([[2], [6], [0]])
    )
    assert (ends.amin(1).tolist(), ends.amax(1).tolist()) == ([0, 5, -9], [1, 5, -1])
    assert random.randint(K, (3,), 0, 9, dtype=torch.int8).dtype == torch.int8
    with pytest.raises(TransformError, match="must be a range of fewer than 2"):
        random.randint(K, (3,), -(2**63), 2**63)
    with pytest.raises(TransformError, match=r"broadcast to \(4, 3\), not to the shape \(3,\)"):
        random.randint(K, (3,), torch.zeros(4, 1, dtype=torch.int64), 5)


def test_bernoulli_is_true_with_its_probability():
    p = torch.tensor([0.0, 0.25, 1.0])
    x = random.bernoulli(K, p, (N, 3))
    assert x.dtype == torch.bool
    torch.testing.assert_close(x.double().mean(0), p.double(), atol=0.005, rtol=0)
    assert random.bernoulli(K).shape == ()


def test_categorical_draws_the_softmax_of_logits():
    logits = torch.tensor([0.0, 1.0, -torch.inf, -1.0])
    frequencies_fit(random.categorical(K, logits, shape=(N,)), logits.softmax(0))
    lines = random.categorical(K, torch.stack([logits, logits.flip(0)], 1), dim=0, shape=(N, 2))
    frequencies_fit(lines[:, 1], logits.flip(0).softmax(0))


def test_every_permutation_is_equally_likely():
    orders = tl.vmap(lambda key: random.permutation(key, 4))(torch.arange(24_000))
    assert (orders.sort(1).values == torch.arange(4)).all()
    _, place = orders.unique(dim=0, return_inverse=True)
    frequencies_fit(place, [1 / 24] * 24)


def test_slices_are_permuted_together_or_each_line_apart():
    x = torch.arange(40).view(10, 4)
    together = random.permutation(K, x)
    assert (together - together[:, :1] == torch.arange(4)).all()
    assert (together[:, 0].sort().values == x[:, 0]).all()
    apart = random.permutation(K, x, independent=True)
    assert (apart.sort(0).values == x).all()
    assert not (apart - apart[:, :1] == torch.arange(4)).all()
    assert (random.permutation(K, x, dim=1).sort(1).values == x).all()


def test_dropout_scales_what_it_leaves():
    ones = torch.ones(N)
    dropped, mask = tl.seeded(torch.native_dropout, K)(ones, 0.75, True)
    assert torch.equal(dropped, 4 * mask)
    frequencies_fit(mask.long(), [0.75, 0.25])


def test_choices():
    p = torch.tensor([0.5, 0.0, 0.2, 0.3])
    frequencies_fit(random.choice(K, 4, (N,), p=p), p)
    frequencies_fit(random.choice(K, 4, (N,)), [0.25] * 4)
    one_of_each = random.choice(K, torch.arange(10, 16), (2, 3), replace=False)
    assert sorted(one_of_each.flatten().tolist()) == [*range(10, 16)]
    weighted = tl.vmap(lambda key: random.choice(key, 4, (1,), replace=False, p=p))(
        torch.arange(10_000)
    )
    frequencies_fit(weighted, p)
    columns = random.choice(K, torch.arange(12).view(3, 4), (2,), dim=1)
    assert columns.shape == (3, 2)
    with pytest.raises(TransformError, match="can't choose 5 of 4 without replacement"):
        random.choice(K, 4, (5,), replace=False)
