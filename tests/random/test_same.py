"""randomness="same": each sample draws what it would alone, from the same generator state."""

import warnings

import pytest
import torch
from torch.nn import functional as F

import torchlayers as tl

X = torch.tensor([[0.2, 0.5, 0.9], [0.6, 0.1, 0.3]], dtype=torch.float64)
aten = torch.ops.aten

# Operators that depend on a sample's shape only.
OF_SHAPE = {
    "rand": lambda x: torch.rand(3) + x,
    "randperm": lambda x: torch.randperm(5) + x[0],
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 2, 90),
    "uniform_": lambda x: x.clone().uniform_(),
    "normal_": lambda x: torch.empty_like(x).normal_(1, 2),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.1),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(),
    "random_": lambda x: torch.empty_like(x).random_(),
    "random_ to": lambda x: torch.empty_like(x).random_(90),
    "random_ from": lambda x: torch.empty_like(x).random_(5, 90),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.4),
    "bernoulli of a number": lambda x: torch.bernoulli(x, 0.4),
    "uniform": lambda x: aten.uniform(x, 2, 3),
    "normal_functional": lambda x: aten.normal_functional(x, 2, 3),
    "exponential": lambda x: aten.exponential(x, 2),
    "cauchy": lambda x: aten.cauchy(x),
    "geometric": lambda x: aten.geometric(x, 0.1),
    "log_normal": lambda x: aten.log_normal(x),
    "random": lambda x: aten.random(x),
    "random to": lambda x: aten.random(x, 90),
    "random from": lambda x: aten.random(x, 5, 90),
}
# Operators that depend on its values.
OF_VALUES = {
    "bernoulli": torch.bernoulli,
    "bernoulli_ of a tensor": lambda x: torch.empty_like(x).bernoulli_(x),
    "normal of means": lambda x: torch.normal(x, 1.0),
    "normal of deviations": lambda x: torch.normal(1.0, x),
    "normal of both": lambda x: torch.normal(x, x * 2),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "multinomial with replacement": lambda x: torch.multinomial(x, 7, replacement=True),
    "poisson": lambda x: torch.poisson(x * 9),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 9), x),
    "gamma": lambda x: torch._standard_gamma(x * 3),
    "dirichlet": torch._sample_dirichlet,
    "dropout": lambda x: F.dropout(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "feature_dropout": lambda x: F.dropout1d(x.expand(2, 3, 3), 0.4),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(
        x.expand(2, 3, 3), 0.4, training=True
    ),
    "dropout_": lambda x: F.dropout(x.clone(), 0.4, inplace=True),
    "rrelu": lambda x: F.rrelu(x - 0.4, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(
        x.expand(1, 2, 3), x.expand(1, 2, 3).sin(), x.expand(1, 2, 3), dropout_p=0.5
    ),
    "two draws": lambda x: torch.bernoulli(x) + torch.rand_like(x),
}
FUNCTIONS = OF_SHAPE | OF_VALUES


def alone(f, xs):
    """Calls the function on each sample, from the same generator state."""
    state = torch.get_rng_state()
    results = []
    for x in xs:
        torch.set_rng_state(state)
        results.append(f(x))
    return torch.stack(results)


def same(f):
    def vmapped(*args):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return tl.vmap(f, randomness="same")(*args)

    return vmapped


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def drawn(f, *args):
    torch.manual_seed(0)
    return f(*args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_sample_draws_what_it_would_alone(name):
    f = FUNCTIONS[name]
    torch.testing.assert_close(drawn(same(f), X), drawn(alone, f, X))


@pytest.mark.parametrize("outer", ["same", "different"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_samples_of_an_outer_vmap(name, outer):
    """torch's rules of bernoulli_ and native_dropout call themselves for ever there."""
    f = FUNCTIONS[name]

    def twice(x):
        return tl.vmap(lambda _: f(x), randomness="same")(torch.zeros(2))

    expected = drawn(tl.vmap(f, randomness=outer), X)
    found = drawn(tl.vmap(twice, randomness=outer), X)
    torch.testing.assert_close(found, torch.stack([expected, expected], 1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_generator_goes_on_as_after_the_last_sample(name):
    drawn(FUNCTIONS[name], X[-1])
    expected = torch.rand(3)
    drawn(same(FUNCTIONS[name]), X)
    assert torch.rand(3).equal(expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_sample_draws_what_it_would_alone_inside_functionalize(name):
    f = FUNCTIONS[name]
    torch.testing.assert_close(drawn(same(tl.functionalize(f)), X), drawn(alone, f, X))
    found = drawn(tl.functionalize(same(f)), X)
    torch.testing.assert_close(found, drawn(alone, f, X))


# torch has no second derivative of these, or no tangent.
ONCE = {"binomial", "dirichlet", "gamma"}


@pytest.mark.parametrize("name", [name for name in OF_VALUES if name not in ONCE])
def test_derivatives_are_those_of_a_loop(name):
    f = OF_VALUES[name]

    def total(g):
        return lambda x: (g(x * 1.0).double() ** 2 * x.sum()).sum()

    for transform in (
        lambda g: tl.grad(total(g))(X),
        lambda g: tl.jvp(total(g), (X,), (X.cos(),))[1],
        lambda g: tl.grad(lambda x: tl.grad(total(g))(x).sum())(X),
    ):
        expected = drawn(transform, lambda x: alone(f, x))
        torch.testing.assert_close(drawn(transform, same(f)), expected)
    inside = drawn(same(tl.grad(total(f))), X)
    torch.testing.assert_close(inside, drawn(alone, tl.grad(total(f)), X))


@pytest.mark.parametrize(
    "f",
    [
        OF_VALUES["gamma"],
        lambda x: torch.distributions.Dirichlet(1 + x * x, validate_args=False).rsample(),
    ],
    ids=["gamma", "Dirichlet"],
)
def test_gradients_are_those_of_a_loop(f):
    def total(g):
        return lambda x: (g(x * 1.0) ** 2 * x.sum()).sum()

    expected = drawn(tl.grad(total(lambda x: alone(f, x))), X)
    torch.testing.assert_close(drawn(tl.grad(total(same(f))), X), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmaps_nest(name):
    f = FUNCTIONS[name]
    xs = torch.stack([X, X * 0.7])
    torch.testing.assert_close(drawn(same(same(f)), xs), drawn(alone, lambda x: alone(f, x), xs))
    different = tl.vmap(same(f), randomness="different")
    found = different(X[0].expand(9, 2, 3).contiguous())
    torch.testing.assert_close(found[:, 0], found[:, 1])
    assert (found != found[0]).any()


@pytest.mark.parametrize("name", ["uniform_", "bernoulli", "multinomial", "normal of means"])
def test_a_generator_of_ones_own_is_set_back(name):
    generator = torch.Generator()
    f = {
        "uniform_": lambda x: x.clone().uniform_(generator=generator),
        "bernoulli": lambda x: torch.bernoulli(x, generator=generator),
        "multinomial": lambda x: torch.multinomial(x, 2, generator=generator),
        "normal of means": lambda x: torch.normal(x, 1.0, generator=generator),
    }[name]
    expected = []
    for x in X:
        generator.manual_seed(3)
        expected.append(f(x))
    before = torch.get_rng_state()
    generator.manual_seed(3)
    torch.testing.assert_close(same(f)(X), torch.stack(expected))
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_draws_by_a_key_around_it_are_the_same_too(name):
    key = tl.random.key(7)
    if name == "attention":
        pytest.skip("a fused kernel that drops has no keyed form")
    expected = torch.stack([tl.seeded(FUNCTIONS[name], key)(x) for x in X])
    torch.testing.assert_close(tl.seeded(same(FUNCTIONS[name]), key)(X), expected)


@pytest.mark.parametrize("name", ["bernoulli", "multinomial", "poisson", "gamma", "uniform"])
def test_a_compiled_function_gives_samples_the_same(name):
    compiled = tl.compile(same(FUNCTIONS[name]), backend="replay")
    x = X[:1].expand(4, 3).contiguous()
    first, second = compiled(x), compiled(x)
    for y in (first, second):
        torch.testing.assert_close(y, y[:1].expand_as(y))


@pytest.mark.parametrize("name", list(OF_SHAPE)[-10:])
@pytest.mark.parametrize("randomness", ["different", "error", "keyed"])
def test_out_of_place_forms_keep_to_the_other_modes(name, randomness):
    """Also for a tensor that is not batched."""
    for f in (FUNCTIONS[name], lambda x: FUNCTIONS[name](X[0]) + 0 * x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            vmapped = tl.vmap(f, randomness=randomness)
            if randomness == "error" and name not in ("rand", "rand_like"):
                with pytest.raises(RuntimeError, match="randomness error mode"):
                    vmapped(X)
            elif randomness != "error":
                found = vmapped(torch.ones(20, 3, dtype=torch.float64))
                assert (found != found[0]).any()


STRIDED = {
    "transposed": (lambda x: x.mT, 0),
    "every second": (lambda x: x[..., ::2], 0),
    "the batch last": (lambda x: x.movedim(0, -1), -1),
    "the batch last in memory": (lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1), 0),
}


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize(("strided", "in_dim"), STRIDED.values(), ids=STRIDED)
def test_slopes_of_rrelu_of_strided_samples(strided, in_dim, randomness):
    """torch's kernel writes the slopes as if they were contiguous."""
    x = strided(torch.linspace(-3, 1, 24, dtype=torch.float64).reshape(2, 3, 4))

    def rrelu(x):
        return F.rrelu(x, 0.1, 0.9, training=True)

    def sampled(transform):
        return drawn(tl.vmap(transform(rrelu), in_dim, randomness=randomness), x)

    def slope(f):
        return lambda x: tl.jvp(f, (x,), (torch.ones_like(x),))[1]

    def gradient(f):
        return tl.grad(lambda x: f(x).sum())

    samples = x.movedim(in_dim, 0)
    slopes = sampled(lambda f: f) / samples
    assert ((slopes >= 0.1) & (slopes <= 0.9) | (samples > 0)).all()
    torch.testing.assert_close(sampled(slope), slopes)
    torch.testing.assert_close(sampled(gradient), slopes)
