"""State whose value decides what is captured: a graph for each value that returns, up to eight."""

import copy
import warnings

import pytest
import torch

import torchlayers as tl
from tests.support.calls import assert_same


class State:
    def __init__(self):
        self.place, self.count, self.mode = 0, 0, "a"
        self.rows = [torch.zeros(4) for _ in range(3)]
        self.table, self.log = {}, []
        self.cache, self.inside = torch.zeros(1, 4), {"keys": torch.zeros(1, 4)}


def writes_to_a_ring(state, x):
    state.rows[state.place] = x
    state.place = (state.place + 1) % 3
    return torch.stack(state.rows).sum(0)


def slices(state, x):
    state.place = (state.place + 1) % 3
    return x[state.place :]


def changes_between_two(state, x):
    state.mode = "b" if state.mode == "a" else "a"
    return x * {"a": 2.0, "b": 3.0}[state.mode]


def does_more_every_third_time(state, x):
    state.count += 1
    if state.count % 3 == 0:
        state.log.append(x.sum())
    return x * state.count


def starts_again(state, x):
    full = state.cache.shape[0] == 3
    state.cache = x[None] if full else torch.cat([state.cache, x[None]])
    return state.cache.sum(0)


def counts_in_keys(state, x):
    state.table[state.count] = x
    state.count += 1
    return x * 2


def counts_in_a_string(state, x):
    state.count += 1
    state.table[f"step {state.count}"] = x
    return x * 2


def grows_a_tensor(state, x):
    state.cache = torch.cat([state.cache, x[None]])
    return state.cache.sum(0)


def grows_a_tensor_inside(state, x):
    state.inside = {"keys": torch.cat([state.inside["keys"], x[None]])}
    return state.inside["keys"].sum(0)


RECURRING = {  # with the most graphs
    writes_to_a_ring: 6,
    slices: 3,
    changes_between_two: 2,
    does_more_every_third_time: 6,
    starts_again: 4,
    grows_a_tensor: 3,
    grows_a_tensor_inside: 3,
    counts_in_keys: 1,
}
GROWING = {
    counts_in_a_string: "ours.count",
}


@pytest.mark.parametrize("program", [*RECURRING, *GROWING])
def test_state_after_each_call_is_eager_codes(program):
    ours, theirs = State(), State()
    compiled = tl.compile(lambda x: program(ours, x), backend="replay")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(12):
            x = torch.arange(4.0) + i
            assert_same(compiled(x), program(theirs, x), rounded=True)
            assert_same(*(copy.deepcopy(vars(each)) for each in (ours, theirs)), rounded=True)
    report = compiled.report()
    messages = [str(each.message) for each in caught]
    if program in RECURRING:
        assert (messages, report.as_it_is) == ([], "")
        assert len(report.signatures) <= RECURRING[program]
        assert sum(entry.calls for entry in report.signatures) == 12
    else:
        (message,) = messages
        assert f"changes {GROWING[program]} at each call" in message
        assert len(report.signatures) == 8
