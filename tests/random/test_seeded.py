"""seeded: torch's random operators draw by a key; and vmap whose samples draw by keys."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from torchlayers import random
from torchlayers.errors import TransformError

F = nn.functional
D = torch.distributions
K = random.key(0)
X = torch.arange(1.0, 13.0).view(4, 3)


class Noisy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        noise = torch.rand_like(x)
        return x * noise, noise

    @staticmethod
    def setup_context(ctx, inputs, outputs):
        ctx.save_for_backward(outputs[1])
        ctx.save_for_forward(outputs[1])
        ctx.mark_non_differentiable(outputs[1])

    @staticmethod
    def backward(ctx, g, _):
        assert len(ctx.needs_input_grad) == 1
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0], None


GRU, LSTM = nn.GRU(3, 3, 2, dropout=0.5), nn.LSTM(3, 3, 2, dropout=0.5)
ATTENTION = nn.MultiheadAttention(3, 1, dropout=0.5)

# Functions that draw, for a sample of three numbers, and the operator each one calls.
DRAWS = {
    "rand": lambda x: x + torch.rand(3),
    "rand of complex": lambda x: x + torch.rand(3, dtype=torch.complex64).imag,
    "rand of doubles": lambda x: x + torch.rand(3, dtype=torch.float64),
    "randn": lambda x: x + torch.randn(3),
    "randn of complex": lambda x: x + torch.randn(3, dtype=torch.complex64).real,
    "randint": lambda x: x + torch.randint(5, (3,)),
    "randint from": lambda x: x + torch.randint(2, 5, (3,), dtype=torch.int32),
    "randperm": lambda x: x[torch.randperm(3)],
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.bfloat16),
    "randint_like": lambda x: torch.randint_like(x, 5) + torch.randint_like(x, 2, 5),
    "bernoulli": lambda x: torch.bernoulli(x / 12) + torch.bernoulli(x, 0.5),
    "bernoulli_": lambda x: x.clone().bernoulli_() + x.clone().bernoulli_(x / 12),
    "normal": lambda x: torch.normal(x, 1.0) + torch.normal(0.0, x) + torch.normal(x, x),
    "normal of a size": lambda x: x + torch.normal(2.0, 3.0, (3,)),
    "normal_": lambda x: x.clone().normal_() + x.clone().normal_(1, 2),
    "uniform_": lambda x: x.clone().uniform_() + x.clone().uniform_(2, 3),
    "exponential_": lambda x: x.clone().exponential_() + x.clone().exponential_(2),
    "geometric_": lambda x: x.clone().geometric_(0.5),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "random_": lambda x: x.clone().random_() + x.clone().random_(5) + x.clone().random_(2, 5),
    "random_ of integers": lambda x: x.long().random_() % 10 + x.to(torch.uint8).random_(),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "multinomial with replacement": lambda x: torch.multinomial(x, 5, replacement=True),
    "multinomial of lines": lambda x: torch.multinomial(x.expand(2, 3), 5, replacement=True),
    "gamma": lambda x: torch._standard_gamma(x),
    "poisson": lambda x: torch.poisson(4 * x),
    "binomial": lambda x: torch.binomial(4 * x, x / 12),
    "into out": lambda x: torch.normal(x, x, out=torch.empty(3)),
    "Gamma": lambda x: D.Gamma(x, 2 * x).sample(),
    "Dirichlet": lambda x: D.Dirichlet(x).rsample(),
    "Beta": lambda x: D.Beta(x, 2 * x).rsample(),
    "Laplace": lambda x: D.Laplace(x, x).rsample(),
    "Multinomial": lambda x: D.Multinomial(7, x / 40, validate_args=False).sample(),
    "LKJCholesky": lambda x: D.LKJCholesky(3, x[0], validate_args=False).sample(),
    "a recurrent network": lambda x: GRU(x.view(1, 1, 3))[0],
    "dropout": F.dropout,
    "dropout in place": lambda x: F.dropout(x.clone(), inplace=True),
    "dropout of a constant": lambda x: x + F.dropout(torch.ones(3)),
    "dropout of channels": lambda x: F.dropout1d(x.view(1, 3, 1)).view(3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.view(1, 3, 1), training=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True),
    "native_dropout in evaluation": lambda x: torch.native_dropout(x, 0.3, False),
    "rrelu": lambda x: F.rrelu(x - 6, training=True),
    "gumbel_softmax": F.gumbel_softmax,
    "attention": lambda x: ATTENTION(*[x.view(1, 1, 3)] * 3)[0],
    "a Function": Noisy.apply,
    "twice": lambda x: torch.rand(3) + torch.randn(3),
    "none": torch.sin,
}
draws = pytest.mark.parametrize("name", DRAWS)


def leaves(result):
    return torch.utils._pytree.tree_leaves(result)


def assert_same(found, expected):
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@draws
def test_a_sample_draws_what_the_function_draws_seeded_with_its_key(name):
    """For any batch and chunk size; torch's generator is not advanced."""
    f, state = DRAWS[name], torch.get_rng_state()
    found = tl.vmap(f, randomness="keyed", key=K)(X)
    by_sample = [tl.seeded(f, random.fold_in(K, i))(X[i]) for i in range(4)]
    assert_same(found, torch.utils._pytree.tree_map(lambda *xs: torch.stack(xs), *by_sample))
    assert_same(tl.vmap(f, randomness="keyed", key=K, chunk_size=3)(X), found)
    assert_same(
        tl.vmap(f, randomness="keyed", key=K)(X[:2]),
        torch.utils._pytree.tree_map(lambda x: x[:2], found),
    )
    assert torch.equal(torch.get_rng_state(), state)


@draws
def test_seeded_draws_the_same_each_time_and_by_another_key_another(name):
    f = DRAWS[name]
    x = X[1].repeat(1)
    first = tl.seeded(f, K)(x)
    assert_same(tl.seeded(f, K)(x), first)
    if name not in ("none", "native_dropout in evaluation"):
        others = [leaves(tl.seeded(f, random.key(seed))(x))[0] for seed in range(1, 20)]
        assert any(not torch.equal(other, leaves(first)[0]) for other in others)


@draws
def test_draws_have_torchs_shape_and_dtype(name):
    f = DRAWS[name]
    for ours, theirs in zip(leaves(tl.seeded(f, K)(X[1])), leaves(f(X[1])), strict=True):
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)


@pytest.mark.parametrize(
    "name",
    [
        "rand",
        "dropout",
        "a Function",
        "twice",
        "normal",
        "normal_",
        "poisson",
        "Dirichlet",
        "Laplace",
    ],
)
def test_derivatives_inside_and_outside(name):
    def f(x):
        return (leaves(DRAWS[name](x))[0] * x).sum()

    pairs = [*zip([random.fold_in(K, i) for i in range(4)], X, strict=True)]
    by_hand = torch.stack([tl.grad(tl.seeded(f, key))(x) for key, x in pairs])
    assert_same(torch.stack([tl.seeded(tl.grad(f), key)(x) for key, x in pairs]), by_hand)
    assert_same(tl.vmap(tl.grad(f), randomness="keyed", key=K)(X), by_hand)
    assert_same(tl.grad(lambda x: tl.vmap(f, randomness="keyed", key=K)(x).sum())(X), by_hand)
    plain = X.clone().requires_grad_()
    tl.vmap(f, randomness="keyed", key=K)(plain).sum().backward()
    assert_same(plain.grad, by_hand)
    pushed = tl.vmap(lambda x: tl.jvp(f, (x,), (x,))[1], randomness="keyed", key=K)(X)
    assert_same(pushed, (by_hand * X).sum(1))


NOISE = {
    "keyed": lambda f: tl.vmap(f, randomness="keyed"),
    "different": lambda f: tl.vmap(f, randomness="different"),
    "same": lambda f: tl.vmap(f, randomness="same"),
    "seeded": lambda f: tl.vmap(tl.seeded(f, K)),
    "torch.func": lambda f: torch.func.vmap(f, randomness="different"),
}


@pytest.mark.parametrize("inner", NOISE)
def test_vmap_inside_a_keyed_vmap(inner):
    """The inner vmap draws by its own key, or draws its batch by the outer vmap's key."""

    def f(x):
        return x * 0 + torch.rand(()) + torch.rand(2)

    x = torch.zeros(4, 3)
    found = tl.vmap(NOISE[inner](f), randomness="keyed", key=K)(x)
    loop = [tl.seeded(NOISE[inner](f), random.fold_in(K, i))(x[i]) for i in range(4)]
    assert_same(found, torch.stack(loop))
    alike = [(found == found[:1]).all().item(), (found == found[:, :1]).all().item()]
    assert alike == [inner == "seeded", inner in ("same", "seeded")]


def test_a_keyed_vmap_inside_others():
    def f(x):
        return x * 0 + torch.rand(())

    x = torch.zeros(4, 3)
    keyed = tl.vmap(f, randomness="keyed")
    with pytest.raises(RuntimeError, match="randomness='error'"):
        tl.vmap(keyed)(x)
    same = tl.vmap(keyed, randomness="same")(x)
    assert (same == same[:1]).all() and same.unique().numel() == 3
    assert tl.vmap(keyed, randomness="different")(x).unique().numel() == 12
    assert tl.seeded(keyed, K)(x[0]).unique().numel() == 3


def test_the_key_of_a_call_is_drawn_of_torchs_generator():
    f = tl.vmap(lambda x: x + torch.rand(2), randomness="keyed")
    torch.manual_seed(0)
    first, second = f(torch.zeros(3)), f(torch.zeros(3))
    torch.manual_seed(0)
    assert torch.equal(f(torch.zeros(3)), first)
    assert not torch.equal(second, first)


@pytest.mark.filterwarnings("ignore:torchlayers. vmap")
def test_a_loop_over_samples_draws_what_the_batch_would():
    def f(x):
        return torch.rand(3) * float(x.sum())

    x = X[:3]
    expected = torch.stack([tl.seeded(f, random.fold_in(K, i))(x[i]) for i in range(3)])
    assert_same(tl.vmap(f, randomness="keyed", key=K, fallback="loop")(x), expected)
    drawn = tl.vmap(f, randomness="keyed", fallback="loop")
    torch.manual_seed(0)
    first = drawn(x)
    torch.manual_seed(0)
    assert_same(drawn(x), first)


def test_a_tensor_made_inside_is_filled_for_each_sample():
    def one(x):
        return x + torch.empty(3).normal_() + torch.zeros(3).uniform_()

    loop = torch.stack([tl.seeded(one, random.fold_in(K, i))(X[i]) for i in range(4)])
    assert_same(tl.vmap(one, randomness="keyed", key=K)(X), loop)


def test_seeded_by_a_batched_key():
    keys = random.split(K, 4)
    found = tl.vmap(lambda key, x: tl.seeded(F.dropout, key)(x))(keys, X)
    assert_same(found, torch.stack([tl.seeded(F.dropout, keys[i])(X[i]) for i in range(4)]))


def test_innermost_key_is_used():
    inner = tl.seeded(lambda: torch.rand(3), K)
    outer = tl.seeded(lambda: (torch.rand(3), inner(), torch.rand(3)), random.key(1))
    first, nested, second = outer()
    assert torch.equal(nested, inner())
    assert torch.equal(
        torch.stack([first, second]),
        torch.stack(tl.seeded(lambda: (torch.rand(3), torch.rand(3)), random.key(1))()),
    )


def test_exception_restores_the_generator():
    def f():
        torch.rand(3)
        raise ZeroDivisionError

    state = torch.get_rng_state()
    for call in (tl.seeded(f, K), lambda: tl.vmap(lambda x: f(), randomness="keyed", key=K)(X)):
        with pytest.raises(ZeroDivisionError):
            call()
        assert tl.current_stack() == ()
    assert torch.equal(torch.get_rng_state(), state)


def test_seeded_applies_to_the_calling_thread():
    inside, out = threading.Event(), threading.Event()
    drawn = {}

    def f():
        inside.set()
        assert out.wait(60)
        return torch.rand(3)

    thread = threading.Thread(target=lambda: drawn.update(seeded=tl.seeded(f, K)()))
    thread.start()
    assert inside.wait(60)
    torch.manual_seed(0)
    drawn["plain"] = torch.rand(3)
    out.set()
    thread.join()
    torch.manual_seed(0)
    assert torch.equal(drawn["plain"], torch.rand(3))
    assert torch.equal(drawn["seeded"], tl.seeded(lambda: torch.rand(3), K)())


def test_values_may_be_read():
    assert isinstance(tl.seeded(lambda: torch.rand(()).item(), K)(), float)


def test_modules_and_their_functions_draw_by_a_key():
    module = nn.Sequential(nn.Linear(3, 5), nn.Dropout(), nn.BatchNorm1d(5))
    apply, params, buffers = tl.functional(module, training=True)
    drawn = tl.seeded(apply, K)
    output, new_buffers = drawn(params, buffers, X)
    assert_same(drawn(params, buffers, X), (output, new_buffers))
    assert not torch.equal(tl.seeded(apply, random.key(1))(params, buffers, X)[0], output)

    def loss(params, key):
        return tl.seeded(apply, key)(params, buffers, X)[0].square().sum()

    apply, params, buffers = tl.functional(module[:2], training=True)
    keys = random.split(K, 3)
    gradients = tl.vmap(tl.grad(loss), in_dims=(None, 0))(params, keys)
    for i in range(3):
        expected = tl.grad(loss)(params, keys[i])
        assert_same({name: value[i] for name, value in gradients.items()}, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # mkldnn's layer
def test_an_lstm_draws_by_each_samples_key():
    x = X.view(4, 1, 3)
    found = tl.vmap(lambda x: LSTM(x)[0], randomness="keyed", key=K)(x)
    assert_same(found[2], tl.seeded(LSTM, random.fold_in(K, 2))(x[2])[0])
    assert_same(tl.seeded(LSTM, K)(x)[0], tl.seeded(LSTM, K)(x)[0])


def test_recomputation_draws_the_same():
    def part(x):
        return F.dropout(x.sin()) * torch.rand(3)

    def gradient(part):
        x = X[0].clone().requires_grad_()
        f = tl.seeded(lambda x: part(x).sum() + torch.rand(()), K)
        value = f(x)
        value.backward()
        return value, x.grad

    def recomputed(x):
        return checkpoint(part, x, use_reentrant=False, context_fn=tl.recomputation)

    assert_same(gradient(recomputed), gradient(part))


@pytest.mark.parametrize("transform", [lambda f: f, lambda f: tl.grad(lambda x: f(x).sum())])
@pytest.mark.parametrize(
    "record",
    [lambda f: f, lambda f: tl.compile(f, backend="replay"), lambda f: tl.linearize(f, X)[1]],
    ids=["eager", "compile", "linearize"],
)
def test_recomputation_in_a_recording(record, transform):
    def part(x):
        return x.sin() * torch.rand(3)

    def recomputed(x):
        return checkpoint(part, x, use_reentrant=False, context_fn=tl.recomputation)

    def keyed(part):
        sample = lambda x: part(part(x)) * torch.rand(3)  # noqa: E731
        return record(transform(tl.vmap(sample, randomness="keyed", key=K)))

    assert_same(keyed(recomputed)(X), keyed(part)(X))


@pytest.mark.parametrize("nest", ["seeded", "keyed", "plain"])
def test_checkpoint_draws_the_same(nest):
    def f(x, part):
        return (part(part(x)) * torch.rand(3)).sum()

    def part(x):
        return F.dropout(x.sin()) * torch.rand(3)

    def gradient(part):
        if nest == "keyed":
            return tl.vmap(tl.grad(lambda x: f(x, part)), randomness="keyed", key=K)(X)
        if nest == "seeded":
            return tl.seeded(tl.grad(lambda x: f(x, part)), K)(X[0])
        x = X[0].clone().requires_grad_()
        tl.seeded(lambda x: f(x, part), K)(x).backward()
        return x.grad

    assert_same(gradient(tl.checkpoint(part)), gradient(part))


# Errors


def test_an_operator_that_has_no_form_by_keys_is_refused_by_name():
    name = "_scaled_dot_product_flash_attention_for_cpu"

    def attention(x):
        x = x.view(1, 1, 1, 3)
        return getattr(torch.ops.aten, name)(x, x, x, 0.5)[0]

    with pytest.raises(TransformError, match=f"can't draw with a key for aten::{name}"):
        tl.seeded(attention, K)(X[0])
    with pytest.raises(TransformError, match=f"can't draw with a key for aten::{name}"):
        tl.vmap(attention, randomness="keyed")(X)


def test_a_generator_is_refused():
    generator = torch.Generator()
    with pytest.raises(TransformError, match="aten::rand was given an explicit generator"):
        tl.seeded(lambda: torch.rand(3, generator=generator), K)()
    with pytest.raises(TransformError, match="aten::poisson was given an explicit generator"):
        tl.seeded(lambda: torch.poisson(X, generator=generator), K)()


def test_attention_that_drops_nothing_is_no_random_operator():
    x = X.view(1, 1, 4, 3)
    expected = F.scaled_dot_product_attention(x, x, x)
    assert_same(tl.seeded(F.scaled_dot_product_attention, K)(x, x, x), expected)


def test_keys_are_checked():
    with pytest.raises(TransformError, match="seeded: a key must be an int64 tensor"):
        tl.seeded(torch.sin, torch.ones(()))
    with pytest.raises(TransformError, match="vmap: a key must be an int64 tensor"):
        tl.vmap(torch.sin, randomness="keyed", key=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TransformError, match="randomness='error' does not use it"):
        tl.vmap(torch.sin, key=K)


def test_seeded_is_rejected_inside_torch_compile():
    for f in (
        tl.seeded(lambda x: x + torch.rand(3), K),
        tl.vmap(lambda x: x + torch.rand(3), randomness="keyed"),
    ):
        with pytest.raises(Exception, match=r"does not work in torch\.compile"):
            torch.compile(f, backend="eager", fullgraph=True)(X)


def test_seeded_is_rejected_around_what_torch_compile_compiles():
    def noisy(x):
        return x + torch.rand(3)

    for f in (
        tl.seeded(torch.compile(noisy, backend="eager"), K),
        tl.vmap(torch.compile(noisy, backend="eager"), randomness="keyed"),
    ):
        with pytest.raises(Exception, match=r"does not work in torch\.compile"):
            f(X)
    drawn = tl.seeded(torch.compile(torch.sin, backend="eager"), K)(X)  # that draws nothing
    assert_same(drawn, X.sin())
