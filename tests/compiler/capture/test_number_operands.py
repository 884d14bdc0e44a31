"""Conversions by float and int, functions of math, and numbers beside tensors in a capture."""

import math
import sys
import types
import warnings

import pytest
import torch

import torchlayers as tl
from tests.support.calls import assert_same

CALLS = [torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 0.5]), torch.tensor([4.0, 4.0])]
state = types.SimpleNamespace(count=0, rate=0.5)


@pytest.fixture(autouse=True)
def state_restored():
    state.count, state.rate = 0, 0.5


def converts_a_tensor(x):
    return x * float(x.sum())


def converts_an_integer(x):
    return x / float((x > 0).sum())


def converts_a_counter(x):
    state.count += 1
    return x * float(state.count) + int(state.count / 2)


def rounds_a_counter(x):
    state.rate *= 0.7
    return x * round(state.rate, 1) + math.floor(state.rate * 10)


def takes_the_root_of_a_counter(x):
    state.count += 1
    return x * math.sqrt(state.count) + math.pow(state.count, 2)


def tells_kinds_apart(x):
    y = x.max().item()
    return x * y if isinstance(y, float | int) and not isinstance(y, int) else x


def stacks_numbers(x):
    state.count += 1
    return torch.tensor([x.sum().item(), state.count, 1.0])


PROGRAMS = [value for value in [*globals().values()] if isinstance(value, types.FunctionType)][1:]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_one_graph_is_right_for_all_values(f):
    compiled = tl.compile(f, backend="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = [compiled(x) for x in CALLS]
    state.count, state.rate = 0, 0.5
    for ours, x in zip(seen, CALLS, strict=True):
        assert_same(ours, f(x), rounded=True)
    (entry,) = compiled.report().signatures
    assert entry.calls == len(CALLS) and entry.splits == ()


def test_globals_are_as_before():
    tl.compile(converts_a_tensor, backend="replay")(CALLS[0])
    assert not {"float", "int"} & vars(sys.modules[__name__]).keys()


def module_with(source):
    module = types.ModuleType("users_module")
    exec(compile("import torch\n" + source, "users_module.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize(
    "other", ["def kind(x): return type(x) is float", "ones = lambda: torch.ones(2, dtype=float)"]
)
def test_a_module_that_uses_the_class_otherwise_is_left_alone(other):
    """There each value is a graph of its own."""
    module = module_with(f"def f(x): return x * float(x.sum()), 'float' in globals()\n{other}")
    compiled = tl.compile(module.f, backend="replay")
    for x in CALLS:
        assert_same(compiled(x), module.f(x))
    assert compiled.report().signatures[0].splits


def test_a_global_of_that_name_is_the_users():
    module = module_with("def float(x): return 2.0\ndef f(x): return x * float(x.sum())")
    compiled = tl.compile(module.f, backend="replay")
    for x in CALLS:
        assert_same(compiled(x), x * 2)
