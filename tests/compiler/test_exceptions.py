"""Exceptions in the middle of a compiled function: the error and the state are eager code's."""

import copy
import warnings
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import assert_same

INDICES = [0, 5, 1, 7, 2]  # of three rows


class State:
    """What the functions write to."""

    def __init__(self):
        self.rate, self.count = 4.0, 0
        self.log, self.recent = [], deque([0], maxlen=3)
        self.table = {"total": torch.zeros(3)}
        self.pair = (State.__new__(State), 0)
        self.held = torch.zeros(3)
        self.weight = nn.Parameter(torch.ones(3))

    def now(self):
        written = {**vars(self), "recent": [*self.recent], "pair": vars(self.pair[0])}
        gradient = written.pop("weight").grad, self.weight.requires_grad
        with torch.no_grad():
            return copy.deepcopy((_detached(written), self.weight.detach(), gradient))


def _detached(value):
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, value)


def writes(state, x):
    state.count += 1
    state.log.append(x.sum())
    state.recent.append(state.count)
    state.table["total"] = state.table["total"] + x
    state.table["count"] = state.count
    state.pair[0].note = x * 2
    state.held.add_(x)
    state.weight.grad = x * 3
    with torch.no_grad():
        state.weight.mul_(2)
    x.add_(1)


def index_out_of_range(state, x, index):
    """Raises in the graph: the capture does not see values."""
    writes(state, x)
    y = x[index]
    writes(state, x)
    return y


def raised_by_python(state, x, index):
    writes(state, x)
    if len(index) == 2:
        raise ZeroDivisionError("two")
    writes(state, x)
    return x[0]


def after_a_branch(state, x, index):
    writes(state, x)
    if x.sum() > 0:
        state.log.append("positive")
        x.mul_(torch.rand(3))
    y = x[index]
    writes(state, x)
    return y


def before_a_branch(state, x, index):
    writes(state, x)
    if x[index].sum() > 0:
        state.log.append("positive")
    return x * 2


def raised_in_a_branch(state, x, index):
    writes(state, x)
    if (index > 3).any():
        raise ValueError("an index above 3")
    writes(state, x)
    return x * 2


def random_before(state, x, index):
    state.log.append(torch.rand(2))
    y = x[index]
    state.log.append(torch.rand(2))
    return y


def division_of_counters(state, x, index):
    state.log.append("called")
    state.rate -= 1.0
    state.count = 3 / state.rate
    return x * 2


def error_of_a_transform(state, x, index):
    writes(state, x)
    shape = (len(index) - 1,) if len(index) == 2 else ()
    return tl.grad(lambda x: x.sum().expand(shape).repeat(len(index)).squeeze())(x)


def caught_inside(state, x, index):
    writes(state, x)
    try:
        state.log.append("tried")
        if len(index) == 2:
            raise KeyError(index)
    except KeyError:
        state.count = -1
    return x * 2


def with_gradient(state, x, index):
    y = state.weight * x
    state.log.append(y)
    state.count += 1
    return y[index] * state.count


def inside_vmap_of_grad(state, x, index):
    def loss(x):
        state.count += 1
        if len(index) == 2:
            raise ZeroDivisionError
        return (x**2).sum()

    result = tl.vmap(tl.grad(loss))(x.expand(2, 3))
    state.log.append(result.sum())
    return result.sum(0)[index]


def inside_hessian_after_a_write(state, x, index):
    writes(state, x)
    return tl.hessian(lambda x: (x[index] ** 3).sum() * state.count)(x)


def of_jvp(state, x, index):
    x.mul_(2)
    state.count += 1
    _, tangent = tl.jvp(lambda x: x.sin()[index] * state.count, (x,), (x,))
    state.log.append(tangent)
    return tangent


PROGRAMS = [
    inside_vmap_of_grad,
    inside_hessian_after_a_write,
    of_jvp,
    index_out_of_range,
    raised_by_python,
    after_a_branch,
    before_a_branch,
    raised_in_a_branch,
    random_before,
    division_of_counters,
    error_of_a_transform,
    caught_inside,
    with_gradient,
]


def run(program, compiled, indices, backend="replay", **options):
    state, x = State(), torch.ones(3)

    def f(x, index):
        return program(state, x, index)

    function = tl.compile(f, backend=backend, **options) if compiled else f
    torch.manual_seed(0)
    seen = []
    for index in indices:
        try:
            seen.append(function(x, index))
        except Exception as error:
            seen.append(type(error).__name__)
        seen.append((state.now(), x.clone(), torch.rand(1)))
    return seen, function


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_state_after_each_call_is_eager_codes(program, length):
    indices = [torch.tensor([i] * (length if i > 3 else 1)) for i in INDICES]
    eager, _ = run(program, False, indices)
    seen, _ = run(program, True, indices)
    assert_same(seen, eager, rounded=True)
    if program is not caught_inside and length == 2:
        assert any(isinstance(each, str) for each in eager)


def cholesky_after_a_write(state, x, index):
    x.add_(1)
    state.held.add_(x)
    state.count += 1
    return torch.linalg.cholesky(torch.diag(x - index)) + state.held.sum()


def test_state_after_an_error_in_inductors_code():
    indices = [torch.tensor(i) for i in (0, 9, 1, 7)]
    eager, _ = run(cholesky_after_a_write, False, indices)
    seen, function = run(cholesky_after_a_write, True, indices, "inductor", wait=True)
    assert_same(seen, eager, rounded=True)
    assert [entry.how for entry in function.report().signatures] == ["inductor"]
    assert sum(each == "_LinAlgError" for each in eager[::2] if isinstance(each, str)) == 2


def test_an_error_is_not_raised_from_one_of_the_capture():
    def f(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        tl.compile(f, backend="replay")(torch.ones(2))
    assert caught.value.__context__ is None


def test_random_numbers_of_python_and_numpy_are_drawn_once():
    import random

    drawn = []

    def f(x):
        drawn.append((random.random(), np.random.rand()))
        raise ZeroDivisionError

    for function in (f, tl.compile(f, backend="replay")):
        random.seed(0)
        np.random.seed(0)
        with pytest.raises(ZeroDivisionError):
            function(torch.ones(2))
    assert drawn[0] == drawn[1] and len(drawn) == 2


def test_a_function_that_raises_only_while_it_is_captured_runs_uncompiled():
    def f(x):
        calls.append(x)
        if type(x) is not torch.Tensor:
            raise ValueError("only now")
        return x * 2

    calls = []
    compiled = tl.compile(f, backend="replay")
    with pytest.warns(UserWarning, match=r"f can't be captured: ValueError: only now\. From now"):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert len(calls) == 2


def test_refusals_change_nothing():
    state = State()

    def f(x):
        writes(state, x)
        torch.manual_seed(0)

    x, before = torch.ones(3), State()
    with pytest.raises(tl.errors.TransformError, match=r"calls torch\.manual_seed"):
        tl.compile(f, backend="replay", fullgraph=True)(x)
    assert_same((state.now(), x), (before.now(), torch.ones(3)))


def test_effects_do_not_happen_twice(capfd):
    state = State()

    def f(x, index):
        state.count += 1
        tl.debug.print("once")
        return x[index]

    compiled = tl.compile(f, backend="replay")
    compiled(torch.ones(3), torch.tensor([0]))
    with pytest.raises(IndexError):
        compiled(torch.ones(3), torch.tensor([5]))
    assert capfd.readouterr().out.count("once") == 2


def test_a_branch_that_cannot_be_captured_runs_uncompiled():
    state = State()

    def f(x):
        if x.sum() < 0:
            state.held = nn.Parameter(x)
        return x * 2

    compiled = tl.compile(f, backend="replay")
    for sign in (1, -1, 1, -1):
        x = sign * torch.ones(2)
        assert torch.equal(compiled(x), x * 2)
    assert isinstance(state.held, nn.Parameter)
