"""Keys: created, split and folded, in any batch, order and nest."""

import itertools

import pytest
import torch

import torchlayers as tl
from torchlayers import random
from torchlayers.errors import TransformError

K = random.key(0)


def test_a_key_is_an_int64_without_dimensions():
    assert (K.dtype, K.shape, K.device.type) == (torch.int64, (), "cpu")


def test_seeds_are_taken_modulo_64_bits():
    assert random.key(2**64 + 5) == random.key(5)
    assert random.key(-1) == random.key(2**64 - 1)
    assert random.key(2**63).item() == -(2**63)


@pytest.mark.parametrize("seed", [1.0, "1", None, True, torch.tensor(1)])
def test_a_seed_is_an_int(seed):
    with pytest.raises(TypeError, match="the seed must be an int"):
        random.key(seed)


def test_torchs_generator_is_left_alone():
    state = torch.get_rng_state()
    random.normal(K, (5,))
    random.permutation(random.split(K)[0], 5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("shape", [0, 1, 5, (2, 3), ()], ids=str)
def test_split_gives_keys_of_a_shape(shape):
    keys = random.split(K, shape)
    assert keys.shape == ((shape,) if isinstance(shape, int) else shape)
    assert keys.dtype == torch.int64


def test_the_first_children_are_the_same_of_any_number():
    assert torch.equal(random.split(K, 100)[:7], random.split(K, 7))


def test_derived_keys_are_distinct():
    """The children of 1,000 consecutive keys, the keys folded from them, and the keys
    themselves."""
    seeds = torch.arange(1000)
    children = tl.vmap(lambda key: random.split(key, 50))(seeds)
    folded = tl.vmap(lambda key: random.fold_in(key, torch.arange(50)))(seeds)
    numbers = tl.vmap(lambda key: random.bits(key, (50,)))(seeds)
    everything = torch.cat([seeds, *(x.flatten() for x in (children, folded, numbers))])
    assert everything.unique().numel() == everything.numel() == 151_000


def test_fold_in_takes_ints_and_tensors_of_them():
    numbers = torch.tensor([[0, 1, -1], [2**62, 5, 7]])
    keys = random.fold_in(K, numbers)
    for place in itertools.product(range(2), range(3)):
        assert keys[place] == random.fold_in(K, numbers[place].item())
    assert torch.equal(random.fold_in(K, numbers[0].to(torch.int8)), keys[0])
    assert random.fold_in(K, 2**64 + 5) == random.fold_in(K, 5)


@pytest.mark.parametrize("data", [1.0, None, torch.ones(2), torch.ones(2, dtype=torch.bool)])
def test_fold_in_rejects_other_data(data):
    with pytest.raises(TypeError, match=r"random\.fold_in: data must be"):
        random.fold_in(K, data)


CALLS = {
    "normal": lambda key: random.normal(key, (2,)),
    "split": lambda key: random.split(key, 2),
    "gamma": lambda key: random.gamma(key, 2.0),
    "randint": lambda key: random.randint(key, (2,), 0, 5),
    "permutation": lambda key: random.permutation(key, 3),
    "categorical": lambda key: random.categorical(key, torch.zeros(3)),
    "fold_in": lambda key: random.fold_in(key, 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_non_key_is_rejected(call):
    if call != "fold_in":
        with pytest.raises(
            TransformError, match=r"got a tensor of 3 keys, of shape \(3,\).*torchlayers\.vmap"
        ):
            CALLS[call](torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TransformError, match=r"got a tensor of torch\.float32.*random\.key"):
        CALLS[call](torch.zeros(()))
    with pytest.raises(TransformError, match=r"got int.*random\.key"):
        CALLS[call](0)


@pytest.mark.parametrize("call", CALLS)
def test_under_vmap_each_sample_draws_by_its_key(call):
    keys = random.split(K, 6)
    expected = torch.stack([CALLS[call](key) for key in keys])
    assert torch.equal(tl.vmap(CALLS[call])(keys), expected)
    assert torch.equal(tl.vmap(CALLS[call], chunk_size=4)(keys), expected)
    assert torch.equal(tl.vmap(CALLS[call])(keys.flip(0)), expected.flip(0))
    nested = tl.vmap(tl.vmap(CALLS[call]), in_dims=1, out_dims=1)(keys.view(2, 3))
    assert torch.equal(nested.flatten(0, 1), expected)


@pytest.mark.parametrize("call", CALLS)
def test_under_vmap_one_key_gives_one_result(call):
    expected = CALLS[call](K)
    found = tl.vmap(lambda x: x * 0 + CALLS[call](K), out_dims=0)(torch.zeros(3, 1))
    assert torch.equal(found, expected.expand(3, *expected.shape).to(found.dtype).view_as(found))


# A function of a key and a scale.
def scaled(key, x):
    return (random.normal(key, (3,), torch.float64) * x).sin()


OUTER = {
    "vmap": lambda f, key, x: tl.vmap(f)(random.split(key, 4), x.expand(4)),
    "grad": lambda f, key, x: tl.grad(lambda x: f(key, x).sum())(x),
    "jvp": lambda f, key, x: tl.jvp(lambda x: f(key, x), (x,), (torch.ones_like(x),))[1],
    "functionalize": lambda f, key, x: tl.functionalize(f)(key, x),
    "seeded": lambda f, key, x: tl.seeded(f, K)(key, x),
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", OUTER)
def test_two_deep_nests(outer, inner):
    if outer == inner == "functionalize":
        pytest.skip("functionalize is not applied twice")
    x = torch.tensor(0.7, dtype=torch.float64)

    def of_inner(key, x):
        return OUTER[inner](scaled, key, x)

    found = OUTER[outer](of_inner, K, x)
    # The reference uses loops, and hand-written derivatives of sin(n x) with respect to x of this
    # order.
    times = (outer in ("grad", "jvp")) + (inner in ("grad", "jvp"))
    keys = [K]
    for each in (outer, inner):
        if each == "vmap":
            keys = [child for key in keys for child in random.split(key, 4)]
    n = torch.stack([random.normal(key, (3,), torch.float64) for key in keys])
    value = [(n * x).sin(), n * (n * x).cos(), -(n**2) * (n * x).sin()][times]
    if outer == "grad":
        value = value.sum()
    elif inner == "grad":
        value = value.sum(-1)
    torch.testing.assert_close(found.flatten(), value.flatten())


def test_torch_compile_makes_the_same_numbers():
    def f(key, x):
        first, second = random.split(key)
        return x + random.normal(first, (5,)) * random.uniform(second, (5,)), random.fold_in(key, 3)

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    for seed in range(3):
        for ours, theirs in zip(
            compiled(random.key(seed), torch.ones(5)),
            f(random.key(seed), torch.ones(5)),
            strict=True,
        ):
            assert torch.equal(ours, theirs)


def test_torch_compile_of_vmap():
    f = tl.vmap(lambda key: random.normal(key, (4,)))
    keys = random.split(K, 3)
    assert torch.equal(torch.compile(f, backend="aot_eager")(keys), f(keys))


def test_a_compiler_may_be_shown_the_operators_of_tensors():
    f = torch.ops.torchlayers.random_uniform_of_tensors
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(K, (9,), torch.float32), random.uniform(K, (9,)))


def test_torchlayers_compile_makes_the_same_numbers():
    f = tl.vmap(tl.grad(lambda x, key: (x * random.normal(key, (4,))).sum()))
    x, keys = torch.ones(3, 4), random.split(K, 3)
    compiled = tl.compile(f)
    for offset in range(3):
        assert torch.equal(compiled(x, keys + offset), f(x, keys + offset))


def test_keys_are_saved(tmp_path):
    torch.save(random.split(K, 3), tmp_path / "keys.pt")
    assert torch.equal(torch.load(tmp_path / "keys.pt"), random.split(K, 3))


@pytest.mark.parametrize("shape", [-1, 2.0, (2, -3), (1.0,)])
@pytest.mark.parametrize("call", [random.split, random.normal, random.bits])
def test_invalid_shape_is_rejected(call, shape):
    with pytest.raises(TransformError, match="random: a shape is an int or ints"):
        call(random.key(0), shape)


def test_non_integer_bounds_are_rejected():
    with pytest.raises(TypeError, match="minval and maxval must be ints"):
        random.randint(random.key(0), (3,), 0, 2.5)


def test_batch_of_keys_may_be_empty():
    assert random.split(random.key(0), 0).shape == (0,)
