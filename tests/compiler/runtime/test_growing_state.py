"""State whose sizes change at each call, such as a cache of keys and values: one entry for all."""

import copy
import types
import warnings

import pytest
import torch

import torchlayers as tl

W = torch.linspace(-1, 1, 9).reshape(3, 3)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def tokens(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 1, 3, generator=generator)


def attend(q, k, v):
    return (q @ k.T).softmax(-1) @ v


def concatenating(state, x):
    state.k = torch.cat([state.k, x @ W])
    state.v = torch.cat([state.v, x.sin()])
    return attend(x, state.k, state.v)


def of_a_dict(state, x):
    state.cache["k"] = torch.cat([state.cache["k"], x])
    return attend(x, state.cache["k"], state.cache["k"])


def with_gradients(state, x):
    state.k = torch.cat([state.k, x])
    return tl.vmap(tl.grad(lambda k: (k @ W).tanh().square().sum()))(state.k)


def noting_the_length(state, x):
    state.k = torch.cat([state.k, x])
    state.n = state.k.shape[0]
    return state.k.sum(0) / state.k.shape[0], state.k.shape[0]


def counting(state, x):
    state.k = torch.cat([state.k, x])
    state.n += 1
    return state.k.mean(0) * state.n


def stored_and_not_read(state, x):
    state.k = torch.cat([state.k, x])
    state.v = state.k * 2
    return state.k.sum()


def at_a_position(state, x):
    state.k[:, state.n] = x[0]
    state.n += 1
    return attend(x, state.k[0, : state.n], state.k[1, : state.n])


def in_a_slice(state, x):
    n = state.n
    state.k[0, n : n + 1] = x @ W
    state.n = n + x.shape[0]
    return attend(x, state.k[0, : state.n], state.k[0, : state.n])


def around_a_ring(state, x):
    state.k[:, state.n] = x[0]
    state.n = (state.n + 1) % 6
    return state.k.sum(1)


def until_it_is_full(state, x):
    if state.n >= 7:
        state.n = 0
    state.k[:, state.n] = x[0]
    state.n += 1
    return state.k[:, : state.n].prod(1)


def growing():
    return types.SimpleNamespace(
        k=torch.zeros(0, 3), v=torch.zeros(0, 3), n=0, cache={"k": torch.zeros(0, 3)}
    )


def allocated():
    return types.SimpleNamespace(k=torch.zeros(2, 16, 3), n=0)


PROGRAMS = {
    concatenating: growing,
    of_a_dict: growing,
    with_gradients: growing,
    noting_the_length: growing,
    counting: growing,
    stored_and_not_read: growing,
    at_a_position: allocated,
    in_a_slice: allocated,
    around_a_ring: allocated,
    until_it_is_full: allocated,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_state_of_many_sizes_has_one_entry(program):
    ours, theirs = PROGRAMS[program](), PROGRAMS[program]()
    compiled = tl.compile(lambda x: program(ours, x), backend="replay")
    for x in tokens(14):
        torch.testing.assert_close(compiled(x), program(theirs, x))
        assert_same(vars(ours), vars(theirs))
    signatures = compiled.report().signatures
    assert len(signatures) == 4 + (program is until_it_is_full)  # the call that starts again
    assert signatures[3].calls >= 6


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert type(value) is type(theirs[name]), name
        if isinstance(value, dict):
            assert_same(value, theirs[name])
        else:
            torch.testing.assert_close(value, theirs[name])


def test_both_arguments_and_state_grow():
    ours, theirs = growing(), growing()
    compiled = tl.compile(lambda x: concatenating(ours, x), dynamic=True, backend="replay")
    for count in (2, 3, 4, 6, 5, 2, 8):
        x = tokens(count)[:, 0]
        torch.testing.assert_close(compiled(x), concatenating(theirs, x))
        torch.testing.assert_close(ours.k, theirs.k)
    assert len(compiled.report().signatures) <= 4


def test_a_cache_starts_again():
    ours, theirs = growing(), growing()
    compiled = tl.compile(lambda x: concatenating(ours, x), backend="replay")
    for _ in range(3):
        for state in (ours, theirs):
            state.k, state.v = torch.zeros(0, 3), torch.zeros(0, 3)
        for x in tokens(7):
            torch.testing.assert_close(compiled(x), concatenating(theirs, x))
    assert len(compiled.report().signatures) == 4


def test_a_size_used_as_a_number():
    def each_row(state, x):
        state.k = torch.cat([state.k, x])
        return sum(state.k[i] for i in range(state.k.shape[0]))

    ours, theirs = growing(), growing()
    compiled = tl.compile(lambda x: each_row(ours, x), backend="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in tokens(12):
            torch.testing.assert_close(compiled(x), each_row(theirs, x))
            torch.testing.assert_close(ours.k, theirs.k)
    assert compiled.report().as_it_is


def test_a_size_that_decides():
    def windowed(state, x):
        state.k = torch.cat([state.k, x])
        if state.k.shape[0] > 5:
            state.k = state.k[1:]
        return state.k.sum(0)

    ours, theirs = growing(), growing()
    compiled = tl.compile(lambda x: windowed(ours, x), backend="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in tokens(12):
            torch.testing.assert_close(compiled(x), windowed(theirs, x))
            torch.testing.assert_close(ours.k, theirs.k)
    assert not compiled.report().as_it_is


def test_a_state_of_another_dtype_is_another_capture():
    ours = growing()
    compiled = tl.compile(lambda x: stored_and_not_read(ours, x), backend="replay")
    for x in tokens(6):
        compiled(x)
    ours.k = ours.k.double()
    theirs = copy.deepcopy(ours)
    x = tokens(1)[0]
    torch.testing.assert_close(compiled(x), stored_and_not_read(theirs, x))
    torch.testing.assert_close(ours.v, theirs.v)


def test_an_integer_of_another_kind_is_another_capture():
    ours, theirs = allocated(), allocated()
    compiled = tl.compile(lambda x: around_a_ring(ours, x), backend="replay")
    for x in tokens(6):
        compiled(x)
        around_a_ring(theirs, x)
    for n in (True, 3):
        ours.n = theirs.n = n
        x = tokens(1)[0]
        torch.testing.assert_close(compiled(x), around_a_ring(theirs, x))
        assert (ours.n, type(ours.n)) == (theirs.n, type(theirs.n))
