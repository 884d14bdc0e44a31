"""Compiled functions draw from torch's generators at each call, the same numbers as eager code."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchlayers as tl

X = torch.tensor([0.3, -1.2, 0.7, 2.0, -0.1])


def draws(x):
    like = torch.empty(5)
    size = x.abs() + 0.5
    return (
        torch.rand(5) * 2,
        torch.randn(5).sin(),
        torch.randint(0, 9, (5,)) + 1,
        torch.randperm(5) * 2,
        torch.bernoulli(torch.full((5,), 0.3)) * 2,
        torch.bernoulli(x, 0.4) * 2,
        torch.normal(x, size) * 2,
        torch.multinomial(size, 3) + 1,
        torch.poisson(size) * 2,
        torch.binomial(torch.full((5,), 10.0), torch.full((5,), 0.4)) + 1,
        torch.rand_like(x) - x,
        like.clone().bernoulli_(0.3) * 3,
        like.clone().uniform_(1, 2).cos(),
        like.clone().normal_(1, 2).sin(),
        like.clone().exponential_().log1p(),
        like.clone().geometric_(0.3) + 1,
        like.clone().cauchy_() / 2,
        like.clone().log_normal_() * 2,
        like.clone().random_() - 1,
        like.clone().random_(7) + 1,
        like.clone().random_(2, 9) + x,
        torch.empty(3, dtype=torch.int64).random_(5, None) // 2,
        F.dropout(x, 0.5) * x,
        torch.distributions.Gamma(size, torch.ones(5)).sample(),
        tl.vmap(lambda x: x + torch.randn(2), randomness="different")(x),
        tl.vmap(lambda x: x + torch.randn(2), randomness="same")(x),
    )


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("backend", ["replay", "inductor"])
def test_same_seed_draws_the_same_numbers_as_eager(backend):
    compiled = tl.compile(draws, backend=backend)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = draws(X)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(X), expected)
    assert [entry.how for entry in compiled.report().signatures] == [backend]


@pytest.mark.sweep
def test_training_with_batch_norm_and_dropout_equals_eager():
    """Plain Inductor reads a dropout mask before it is drawn in this network (torch 2.13)."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1)
    )
    x, y = torch.randn(32, 3), torch.randn(32, 1)

    def trained(net, wrap):
        @wrap
        def loss(x, y):
            return (net(x) - y).square().mean()

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            losses.append(loss(x, y))
            losses[-1].backward()
            optimizer.step()
        return torch.stack(losses), net.state_dict(), loss

    *expected, _ = trained(copy.deepcopy(net), lambda loss: loss)
    *got, loss = trained(net, tl.compile)
    torch.testing.assert_close(got, expected)
    assert [entry.how for entry in loss.report().signatures] == ["inductor"]


D = torch.distributions
P = torch.tensor([0.3, 0.7])
DISTRIBUTIONS = {
    "normal": lambda p: D.Normal(p, p).rsample() + D.Normal(p, p).log_prob(p),
    "uniform": lambda p: D.Uniform(0.0, p).sample(),
    "gamma": lambda p: D.Gamma(p, p).rsample(),
    "beta": lambda p: D.Beta(p, p).rsample(),
    "dirichlet": lambda p: D.Dirichlet(p).rsample(),
    "categorical": lambda p: D.Categorical(p).sample((3,)),
    "one-hot": lambda p: D.OneHotCategorical(p).sample(),
    "bernoulli": lambda p: D.Bernoulli(p).sample(),
    "poisson": lambda p: D.Poisson(p).sample(),
    "divergence": lambda p: D.kl_divergence(D.Normal(p, p), D.Normal(0.0, 1.0)),
    "several variables": lambda p: D.MultivariateNormal(p, torch.eye(2)).log_prob(p),
    "mixture": lambda p: D.MixtureSameFamily(D.Categorical(p), D.Normal(p, p)).log_prob(p),
    "transformed": lambda p: D.TransformedDistribution(D.Normal(p, p), [D.ExpTransform()]).log_prob(
        p
    ),
    "gradient": tl.grad(lambda p: D.Normal(p, p).log_prob(p).sum()),
    "batched": tl.vmap(lambda p: D.Normal(p, 1.0).log_prob(p)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    """Their arguments are not validated, since validation reads values."""
    f = DISTRIBUTIONS[name]
    torch.manual_seed(0)
    expected = f(P)
    torch.manual_seed(0)
    torch.testing.assert_close(tl.compile(f, backend="replay")(P), expected)


def test_distributions_are_still_validated_after_a_capture(monkeypatch):
    # torch.compile's first call in a process turns validation off for good.
    monkeypatch.setattr(D.Distribution, "_validate_args", True)
    given = D.Normal(0.0, 1.0)
    tl.compile(lambda p: D.Normal(p, p).log_prob(p) + given.log_prob(p), backend="replay")(P)
    with pytest.raises(ValueError):
        D.Normal(P, -P)


def test_graph_with_bounded_random_has_printable_code():
    code = tl.make_graph(lambda: torch.empty(3).random_(2, 5))().code
    assert "randint_like" in code


def draws_from_its_own(x, generator):
    """Calls the operators whose generator argument works on fake tensors (torch 2.13)."""
    own = {"generator": generator}
    like = torch.empty(5)
    size = x.abs() + 0.5
    return (
        torch.rand(5, **own) * 2,
        torch.randn(5, **own).sin(),
        torch.randint(0, 9, (5,), **own) + 1,
        torch.randperm(5, **own) * 2,
        torch.bernoulli(torch.full((5,), 0.3), **own) * 2,
        torch.normal(x, size, **own) * 2,
        torch.multinomial(size, 3, **own) + 1,
        torch.poisson(size, **own) * 2,
        torch.binomial(torch.full((5,), 10.0), torch.full((5,), 0.4), **own) + 1,
        like.clone().uniform_(1, 2, **own).cos(),
        like.clone().normal_(1, 2, **own).sin(),
        tl.vmap(lambda x: x + torch.randn(2, **own), randomness="different")(x),
        torch.rand(5),
    )


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("backend", ["replay", "inductor"])
def test_explicit_generators_draw_the_same_numbers_as_eager(backend, check):
    """The check of the first result draws random numbers, too."""
    one, other = torch.Generator(), torch.Generator()
    compiled = tl.compile(draws_from_its_own, backend=backend, check=check)

    def results(f):
        torch.manual_seed(0)
        one.manual_seed(1)
        other.manual_seed(2)
        return [f(X, generator) for generator in (one, one, other, one, other)]

    torch.testing.assert_close(results(compiled), results(draws_from_its_own))
    assert [entry.how for entry in compiled.report().signatures] == [backend] * 2


@pytest.mark.parametrize("where", ["captured", "in a branch", "in a loop"])
@pytest.mark.parametrize("by", ["autograd", "grad"])
def test_gradients_with_an_explicit_generator_equal_eager_ones(where, by):
    generator = torch.Generator()

    def noisy(x):
        return (x * torch.rand(5, generator=generator)).sin()

    def of(x):
        if where == "in a branch":
            return tl.cond(x.sum() < 100, noisy, torch.cos, x).sum()
        if where == "in a loop":
            return tl.fori_loop(0, 12, lambda i, x: noisy(x), x).sum()
        return noisy(x).sum()

    def gradients(f):
        generator.manual_seed(1)
        found = []
        if by == "grad":
            return [f(X) for _ in range(3)]
        for _ in range(3):
            x = X.clone().requires_grad_()
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            found += [slope, *torch.autograd.grad(slope.sum(), x)]
        return found

    f = tl.grad(of) if by == "grad" else of
    torch.testing.assert_close(gradients(tl.compile(f, backend="replay")), gradients(f))


def put_back(x):
    state = torch.get_rng_state()
    y = torch.rand(5)
    torch.set_rng_state(state)
    return x + y


def aside(x):
    with torch.random.fork_rng():
        return x + torch.rand(5)


def seeded_aside(x):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return x + torch.rand(5)


SEEDS = {
    "manual_seed": lambda x: (torch.manual_seed(0), x + torch.rand(5))[1],
    "random.manual_seed": lambda x: (torch.random.manual_seed(0), x + torch.rand(5))[1],
    "seed": lambda x: (torch.seed(), x + torch.rand(5))[1],
    "set_rng_state": put_back,
    "fork_rng": aside,
    "seeded in fork_rng": seeded_aside,
}


@pytest.mark.parametrize("name", SEEDS)
def test_seeding_runs_uncompiled(name):
    torch.manual_seed(3)
    expected = [SEEDS[name](X) for _ in range(2)], torch.get_rng_state()
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="seeds torch's random numbers.*it runs uncompiled"):
        compiled = tl.compile(SEEDS[name], backend="replay")
        seen = [compiled(X) for _ in range(2)]
    if name != "seed":  # which draws its seed elsewhere
        torch.testing.assert_close((seen, torch.get_rng_state()), expected)


@pytest.mark.parametrize("name", SEEDS)
def test_seeding_in_a_graph_is_rejected_and_has_no_effect(name):
    functions = [torch.manual_seed, torch.seed, torch.set_rng_state, torch.random.set_rng_state]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(
        tl.errors.TransformError, match=r"Python code runs only once.* In test_random_numbers\.py"
    ):
        tl.compile(SEEDS[name], backend="replay", fullgraph=True)(X)
    assert torch.equal(torch.get_rng_state(), state)
    now = [torch.manual_seed, torch.seed, torch.set_rng_state, torch.random.set_rng_state]
    assert functions == now


def test_another_thread_may_seed_during_a_capture():
    def f(x):
        thread = threading.Thread(target=seed)
        thread.start()
        thread.join()
        return x * 2

    def seed():
        torch.manual_seed(7)
        seeded.append(torch.initial_seed())

    seeded = []
    torch.testing.assert_close(tl.compile(f, backend="replay")(X), X * 2)
    assert seeded == [7]


DRAWING = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x[None, :, None], 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(
        *([x[None, :, None].sin()] * 3), dropout_p=0.5
    ),
    "in place": lambda x: x * torch.empty(5).uniform_(),
}


@pytest.mark.sweep
@pytest.mark.parametrize("f", DRAWING.values(), ids=DRAWING)
def test_linearize_uses_the_same_draws_for_value_and_map(f):
    def step(x):
        value, push = tl.linearize(f, x)
        return value, push(torch.ones_like(x)), push(x), torch.rand(3)

    compiled = tl.compile(step, backend="replay", check=False)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = step(X)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(X), expected)
