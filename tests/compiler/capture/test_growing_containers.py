"""Lists, deques and dicts that get longer at each call: one entry for all lengths."""

import collections
import types

import pytest
import torch

import torchlayers as tl
from tests.support.calls import assert_same


def start():
    return types.SimpleNamespace(
        h=[torch.ones(())],
        logs={},
        numbers=[1.0],
        ends=collections.deque([torch.ones(())]),
        step=0,
        by_step={},
    )


def by_a_local_name(state, x):
    history = state.h
    history.append(x.sum())
    return x * 2


def add(items, value):
    items.append(value)


def in_another_function(state, x):
    add(state.h, x.sum())
    return x * 2


def by_setdefault(state, x):
    state.logs.setdefault("loss", []).append(x.sum())
    return x * 2


def if_there_is_none(state, x):
    if "loss" not in state.logs:
        state.logs["loss"] = []
    state.logs["loss"].append(x.sum())
    return x * 2


def reading_the_last(state, x):
    state.h.append(0.9 * state.h[-1] + x.sum())
    return x * state.h[-1] + state.h[-2]


def reading_the_first(state, x):
    state.h += [x.sum()]
    return x * state.h[0]


def reading_numbers(state, x):
    state.numbers.append(0.9 * state.numbers[-1] + x.sum().item())
    return x * state.numbers[-2]


def averaging_over_the_length(state, x):
    state.h.append(x.sum())
    return x / len(state.h)


def of_limited_length(state, x):
    state.h.append(x.sum())
    if len(state.h) > 100:
        state.h.pop(0)
    return x * 2


def dropping_the_oldest(state, x):
    state.ends.append(x.sum())
    oldest = state.ends.popleft()
    return x * oldest


def if_it_has_any(state, x):
    if state.h:
        state.h.extend([x.sum(), x.mean()])
    return x * 2


def by_step(state, x):
    state.step += 1
    state.by_step[state.step] = x.sum()
    return x * 2


def by_length(state, x):
    state.by_step[len(state.by_step)] = x.sum().item()
    return x * 2


def by_updates(state, x):
    state.step += 1
    state.by_step.update({state.step * 2: x.sum()})
    return x * 2


def with_a_number_in_it(state, x):
    state.logs["n"] = state.logs.get("n", 0) + 1
    state.step += 1
    state.logs[state.step] = x.sum()
    return x * 2


CALLS = dict.fromkeys(
    [
        *(by_a_local_name, in_another_function, reading_the_last, reading_the_first),
        *(reading_numbers, averaging_over_the_length, of_limited_length, dropping_the_oldest),
        *(if_it_has_any, by_step, by_length),
    ],
    (10,),
)
CALLS |= dict.fromkeys([by_setdefault, if_there_is_none], (1, 9))  # at first it is not there


@pytest.mark.parametrize("program", CALLS, ids=lambda program: program.__name__)
def test_one_entry_for_all_lengths(program):
    ours, theirs = start(), start()
    compiled = tl.compile(lambda x: program(ours, x), backend="replay")
    for count in range(10):
        x = torch.arange(3.0) - count
        assert_same(compiled(x), program(theirs, x))
        assert_same(vars(ours), vars(theirs))
    assert (*(entry.calls for entry in compiled.report().signatures),) == CALLS[program]


def puts_at_the_front(state, x):
    state.h.insert(0, x.sum())
    return x * 2


def stacks(state, x):
    state.h.append(x.sum())
    return torch.stack(state.h).mean()


def replaces(state, x):
    state.h[0] = x.sum()
    state.h.append(x.mean())
    return x * 2


def sets_and_reads(state, x):
    state.step += 1
    state.by_step[state.step] = x.sum()
    return x * len(state.by_step)


@pytest.mark.parametrize(
    "program",
    [puts_at_the_front, stacks, replaces, sets_and_reads, by_updates, with_a_number_in_it],
)
@pytest.mark.filterwarnings("ignore:torchlayers. compile")
def test_other_uses_are_eager_codes(program):
    ours, theirs = start(), start()
    compiled = tl.compile(lambda x: program(ours, x), backend="replay")
    for count in range(10):
        x = torch.arange(3.0) - count
        assert_same(compiled(x), program(theirs, x))
        assert_same(vars(ours), vars(theirs))


def test_an_empty_list_raises_as_in_eager_code():
    state = start()
    compiled = tl.compile(lambda x: reading_the_last(state, x), backend="replay")
    for _ in range(3):
        compiled(torch.ones(2))
    state.h.clear()
    with pytest.raises(IndexError):
        compiled(torch.ones(2))
    assert state.h == []


def test_a_bound_method_adds_at_each_call():
    history = []
    put = history.append

    @tl.compile(backend="replay")
    def f(x):
        put(x.sum())
        return x * 2

    for _ in range(3):
        f(torch.ones(2))
    assert_same(history, [torch.tensor(2.0)] * 3)


@pytest.mark.filterwarnings("error")
def test_autograd_finds_what_was_added():
    ours, theirs = start(), start()
    compiled = tl.compile(lambda x: reading_the_last(ours, x), backend="replay")
    for _ in range(3):
        x = torch.arange(3.0, requires_grad=True)
        slopes = []
        for state, f in ((ours, compiled), (theirs, lambda x: reading_the_last(theirs, x))):
            f(x)
            slopes.append(torch.autograd.grad(state.h[-1], x))
            state.h[-1] = state.h[-1].detach()
        torch.testing.assert_close(*slopes)


class Epoch:
    def __init__(self):
        self.losses, self.best = {}, torch.zeros(())


def replaces_a_dict(state, x):
    state.logs["loss"] = x.sum()
    state.logs = {}
    return x * 2


def replaces_an_object(state, x):
    state.epoch.losses["loss"] = x.sum()
    state.epoch.best = x.max() + state.epoch.best
    best = state.epoch.best
    state.epoch = Epoch()
    return x * best


def has_another_name_for_it(state, x):
    state.logs["loss"] = x.sum()
    state.logs = {}
    return x * len(state.same)


@pytest.mark.parametrize("program", [replaces_a_dict, replaces_an_object, has_another_name_for_it])
@pytest.mark.filterwarnings("ignore:torchlayers. compile")
def test_what_a_call_changes_and_replaces_is_what_it_finds(program):
    """As GradScaler does: the object that a call finds is another one than that of the capture."""
    states = []
    for is_compiled in (False, True):
        state = start()
        state.epoch, state.same = Epoch(), state.logs
        f = lambda x, state=state: program(state, x)  # noqa: E731
        states.append((state, tl.compile(f, backend="replay") if is_compiled else f))
    for count in range(5):
        before = [(state.logs, state.epoch, state.same) for state, _ in states]
        results = [f(torch.arange(3.0) - count) for _, f in states]
        assert_same(*results)
        for found in zip(*before, strict=True):
            assert_same(*(vars(each) if isinstance(each, Epoch) else each for each in found))
        assert_same(*(vars(state.epoch) for state, _ in states))
    if program is not has_another_name_for_it:
        (_,) = states[1][1].report().signatures
