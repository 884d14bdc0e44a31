"""Iterators that a compiled function advances: each call takes what the function itself takes."""

import itertools
import warnings

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.calls import assert_same


class State:
    def __init__(self):
        self.numbers, self.count = iter(range(1, 100)), itertools.count(0.5)
        self.squares = (i * i for i in itertools.count(1))
        self.batches = iter([torch.arange(4.0) + i for i in range(100)])
        self.pairs = [iter(range(50)), zip(range(50), range(50), strict=True)]
        self.total, self.sum = 0, torch.zeros(4)
        self.weight = nn.Parameter(torch.ones(4))

    def rest(self):
        taken = [next(self.numbers), next(self.count), next(self.squares), next(self.batches)]
        return *taken, *map(next, self.pairs), type(self.pairs[0]).__name__


def takes_numbers(state, x):
    return x * next(state.numbers) + next(state.count) * next(state.pairs[0])


def of_a_generator(state, x):
    state.total += next(state.squares)
    state.sum = state.sum + x * state.total
    return state.sum


def for_a_while(state, x):
    for i, number in zip(range(2), state.numbers):  # noqa: B905
        x = x * number + i
    return x


def raises_in_the_graph(state, x):
    state.total = next(state.numbers)
    return x[(x.sum() > 20).long() * 9] * state.total


COMPILED = [takes_numbers, of_a_generator, for_a_while, raises_in_the_graph]


def takes_batches(state, x):
    return x + next(state.batches)


def takes_pairs(state, x):
    return x * sum(next(state.pairs[1]))


def decides_by_a_number(state, x):
    return x if next(state.numbers) % 3 else x * 2


def prints(state, x):
    x = x * next(state.numbers) + next(state.batches)
    print(x)
    return x


def raises(state, x):
    x = x + next(state.batches) * next(state.squares)
    if state.total % 2 == 0:
        state.total = 1
        raise ValueError
    return x


def raises_after_a_read(state, x):
    number = next(state.numbers)
    if x.sum() > 20:
        raise ValueError
    return x * number


def stores_an_iterator(state, x):
    state.pairs[0] = state.numbers
    return x * next(state.pairs[0])


def with_a_parameter(state, x):
    return (state.weight * x * next(state.numbers)).sum()


UNCOMPILED = [
    *(takes_batches, takes_pairs, decides_by_a_number, prints, raises, raises_after_a_read),
    *(stores_an_iterator, with_a_parameter),
]


def run(program, compiled):
    state, seen = State(), []
    f = (lambda f: tl.compile(f, backend="replay") if compiled else f)(lambda x: program(state, x))
    for i in range(10):
        try:
            result = f(torch.arange(4.0) + i)
        except (ValueError, IndexError) as error:
            result = type(error).__name__
        if isinstance(result, torch.Tensor) and result.requires_grad:
            (slope,) = torch.autograd.grad(result, state.weight)
            result = result.detach(), slope
        seen.append((result, state.total, state.sum.clone()))
    return (seen, state.rest()), f


@pytest.mark.parametrize("program", [*COMPILED, *UNCOMPILED])
def test_results_and_iterators_are_eager_codes(program):
    eager, _ = run(program, False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen, compiled = run(program, True)
    assert_same(seen, eager, rounded=True)
    if program in COMPILED:
        assert [str(each.message) for each in caught] == []
        assert [entry.calls for entry in compiled.report().signatures] == [10]


def test_the_end_of_an_iterator_is_the_functions_own_exception():
    numbers = iter([1.0, 2.0])
    compiled = tl.compile(lambda x: x * next(numbers), backend="replay")
    assert [compiled(torch.tensor(1.0)).item() for _ in range(2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            compiled(torch.tensor(1.0))


def test_batches_of_a_data_loader():
    loader = torch.utils.data.DataLoader(torch.arange(6.0), batch_size=2)
    batches = iter(loader)
    compiled = tl.compile(lambda x: x * next(batches).sum(), backend="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [compiled(torch.ones(())).item() for _ in range(3)] == [1.0, 5.0, 9.0]
