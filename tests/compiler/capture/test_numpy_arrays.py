"""NumPy arrays that a compiled function reads and writes: after each call as after eager code."""

import warnings

import numpy as np
import pytest
import torch

import torchlayers as tl
from tests.support.calls import assert_same

CALLS = [torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 0.5]), torch.tensor([4.0, 4.0])] * 2


class State:
    def __init__(self):
        self.losses = np.zeros(8)
        self.counts = np.zeros((2, 2), dtype="int64")
        self.rows = np.zeros((8, 2), dtype="float32")
        self.pairs = np.zeros((8, 2))
        self.step = 0

    def now(self):
        arrays = self.losses, self.counts, self.rows, self.pairs
        return [array.tolist() for array in arrays], self.step


def logs(state, x):
    state.losses[state.step] = x.sum().item()
    state.step += 1
    return x * 2


def averages(state, x):
    state.losses[0] = 0.9 * state.losses[0] + 0.1 * x.mean().item()
    return x - state.losses[0]


def counts(state, x):
    state.counts[int(x[0] > 0), -1] += 1
    return x * 2


def reads_what_it_has_set(state, x):
    state.losses[1] = x.max().item()
    state.losses[2] = state.losses[1] + state.losses[3]
    return x * state.losses[2]


def has_an_integer_set(state, x):
    state.losses[3] = 2
    state.losses[4] += 1
    return x * state.losses[4]


def sets_a_slice(state, x):
    state.losses[:2] += 1
    return x * 2


def sets_rows(state, x):
    state.rows[state.step] = x.detach().numpy()
    state.step += 1
    return x.add_(1)


def averages_a_row(state, x):
    state.rows[0, :] = 0.9 * state.rows[0, :] + x.numpy() * 0.5
    return x * torch.from_numpy(state.rows[1].copy())


def sets_numbers(state, x):
    state.pairs[state.step] = [x.sum().item(), 2]
    state.step += 1
    return x * 2


def reads_a_slice(state, x):
    scale = torch.from_numpy(state.losses[1:3] * 2 + 1)
    state.losses[2] = x.sum().item()
    return x * scale


COMPILED = [logs, averages, counts, reads_what_it_has_set, has_an_integer_set, sets_a_slice]
COMPILED += [sets_rows, sets_numbers, reads_a_slice]


def reads_a_slice_that_it_set(state, x):
    state.losses[:2] = x.sum().item()
    return x * float(state.losses[1])


def returns_the_array(state, x):
    array = x.numpy().copy()
    state.rows[0] = array
    return x * float(array[0])


def adds_whole_arrays(state, x):
    state.rows[0] = x.numpy() + np.ones(2, dtype="float32")
    return x * 2


def rounds(state, x):
    state.counts[0, 0] = 1.5
    return x * state.step


def may_read_what_it_set(state, x):
    state.losses[state.step] = x.sum().item()
    state.step += 1
    return x * state.losses[0]


def run(program, wrap):
    state = State()
    function = wrap(lambda x: program(state, x))
    return [(function(x.clone()), state.now()) for x in CALLS], function


def compiled(f):
    return tl.compile(f, backend="replay")


@pytest.mark.parametrize("program", COMPILED)
def test_elements_are_read_and_set_at_each_call(program):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen, function = run(program, compiled)
    assert_same(seen, run(program, lambda f: f)[0], rounded=True)
    assert len(function.report().signatures) == 1


@pytest.mark.parametrize(
    "program",
    [
        rounds,
        may_read_what_it_set,
        averages_a_row,
        reads_a_slice_that_it_set,
        returns_the_array,
        adds_whole_arrays,
    ],
)
def test_other_uses_run_uncompiled(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen, _ = run(program, compiled)
    assert_same(seen, run(program, lambda f: f)[0], rounded=True)


def test_an_index_that_does_not_exist():
    state = State()
    function = compiled(lambda x: logs(state, x))
    for _ in range(8):
        function(CALLS[0])
    with pytest.raises(IndexError):
        function(CALLS[0])
    assert state.step == 8


def test_a_gradient_of_autograd():
    def differentiated(state, x):
        return averages(state, x.requires_grad_()).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen, _ = run(differentiated, compiled)
    assert_same(seen, run(differentiated, lambda f: f)[0], rounded=True)
