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
    if name == "methods":
        pytest.skip("a static method is not found in its class")
    compiled = tl.compile(PROGRAMS[name], backend="replay")
    for _ in range(3):
        compiled(X)
    assert sum(cache.cache_info().misses for cache in CACHES) == 1
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
