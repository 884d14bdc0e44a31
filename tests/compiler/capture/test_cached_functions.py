"""Functions that cache their results (functools.cache), called inside a compiled function."""

import functools
import types

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

import torchlayers as tl
from tests.support.calls import assert_same

X = torch.arange(1.0, 4.0)


def made():
    return torch.arange(3.0).sin()


table = functools.lru_cache(made)
tables = types.ModuleType("tables")
tables.table = functools.cache(made)
nested = functools.cache(lambda: {"rows": [made()]})


class Positions(nn.Module):
    @functools.cache  # noqa: B019
    def table(self):
        return made()

    @staticmethod
    @functools.cache
    def other():
        return made()

    def forward(self, x):
        return x * self.table() + self.other()


def through_another(x):
    return by_name(x) + 1


def by_name(x):
    return x * table()


PROGRAMS = {
    "by its name": by_name,
    "through another function": through_another,
    "of a module": lambda x: x * tables.table(),
    "in containers": lambda x: x * nested()["rows"][0],
    "methods": Positions(),
    "in layers": tl.vmap(tl.grad(lambda x: x * table().sum())),
}
CACHES = [table, tables.table, nested, Positions.table, Positions.other]


@pytest.fixture(autouse=True)
def forgotten():
    for cache in CACHES:
        cache.cache_clear()


@pytest.mark.parametrize("name", PROGRAMS)
def test_cache_holds_real_tensors_after_a_capture(name):
    f = PROGRAMS[name]
    compiled = tl.compile(f, backend="replay")
    found = compiled(X)
    later = f(X)
    assert not isinstance(later, FakeTensor)
    assert_same(found, later)
    assert_same(compiled(X + 1), f(X + 1))


def test_results_cached_earlier_are_captured_and_stay():
    kept = table()
    compiled = tl.compile(by_name, backend="replay")
    assert_same(compiled(X), X * kept)
    assert table() is kept
    kept.mul_(2)
    assert_same(compiled(X), X * kept)


def test_error_leaves_the_cache_as_it_is_after_the_function_itself():
    def f(x):
        table()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tl.compile(f, backend="replay")(X)
    assert table.cache_info().currsize == 1
    assert not isinstance(table(), FakeTensor)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_capture_fills_the_cache(name):
    compiled = tl.compile(PROGRAMS[name], backend="replay")
    for _ in range(3):
        compiled(X)
    caches = 2 if name == "methods" else 1
    assert sum(cache.cache_info().misses for cache in CACHES) == caches
    assert not isinstance((table() if name != "of a module" else tables.table()), FakeTensor)


scaled = functools.cache(lambda x, factor: x * factor)


def test_results_for_tensors_are_captured():
    compiled = tl.compile(lambda x: scaled(x, 2.0), backend="replay")
    assert_same(compiled(X), X * 2)
    assert_same(compiled(X + 1), (X + 1) * 2)
    scaled.cache_clear()


def test_errors_of_a_cached_function_are_raised():
    @functools.cache
    def fails(n):
        raise KeyError(n)

    with pytest.raises(KeyError, match="3"):
        tl.compile(lambda x: x * fails(3), backend="replay")(X)


def counters():
    """Yields cached functions that count their calls, each with what reads the counter."""
    total, box, log = 0, {"calls": 0}, []

    @functools.lru_cache
    def by_variable(n):
        nonlocal total
        total += 1
        return n * n

    @functools.cache
    def by_item(n):
        box["calls"] += 1
        return n * n

    @functools.lru_cache(maxsize=2)
    def by_list(n):
        log.append(n)
        return n * n

    @functools.cache
    def by_attribute(n):
        by_attribute.calls += 1
        return n * n

    by_attribute.calls = 0

    class Squares:
        calls = 0

        @staticmethod
        @functools.cache
        def square(n):
            Squares.calls += 1
            return n * n

    yield by_variable, lambda: total
    yield by_item, lambda: dict(box)
    yield by_list, lambda: [*log]
    yield by_attribute, lambda: by_attribute.calls
    yield lambda n: Squares.square(n), lambda: Squares.calls


COUNTED = ["variable", "item", "list", "attribute", "class"]
READ = {
    "int": lambda x: int(x.sum()),
    "item": lambda x: x.sum().item(),
    "an argument": lambda x: x.shape[0],
}


def of_square(square, read):
    return lambda x: x * 0 + square(read(x))


@pytest.mark.parametrize("reading", READ)
@pytest.mark.parametrize("place", range(len(COUNTED)), ids=COUNTED)
def test_what_a_cached_function_stores_is_stored_once(place, reading):
    """Its number may be a tensor's: each value is computed once, and counted once."""
    read = READ[reading]
    expected, compiled = [], []
    for results, transform in ((expected, lambda f: f), (compiled, tl.compile(backend="replay"))):
        square, count = [*counters()][place]
        f = transform(of_square(square, read))
        for n in (1, 2, 3, 4, 4, 3, 1):
            results.append((f(torch.full((n,), 2.0)).tolist(), count()))
    assert compiled == expected
