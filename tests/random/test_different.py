"""randomness="different" in nests of vmaps: samples draw apart, at each level that says so."""

import itertools

import pytest
import torch

import torchlayers as tl
from tests.random.test_same import OF_SHAPE, OF_VALUES

NESTS = [("different", "different"), ("same", "different"), ("different", "same")]


@pytest.mark.parametrize("nest", NESTS, ids="-".join)
@pytest.mark.parametrize("name", OF_SHAPE)
def test_samples_draw_apart_at_each_level_that_says_so(name, nest):
    func = OF_SHAPE[name]
    for randomness in reversed(nest):
        func = tl.vmap(func, randomness=randomness)
    torch.manual_seed(0)
    x = torch.full((2, 3, 3), 0.5, dtype=torch.float64)
    drawn = torch.stack([func(x).reshape(2, 3, -1) for _ in range(10)], 2)  # a few may be equal
    for dim, randomness in enumerate(nest):
        samples = itertools.combinations(drawn.unbind(dim), 2)
        assert all(torch.equal(*pair) == (randomness == "same") for pair in samples)


@pytest.mark.parametrize("nest", NESTS, ids="-".join)
@pytest.mark.parametrize("name", OF_VALUES)
@pytest.mark.filterwarnings("ignore")  # of torch, about operators that it runs one by one
def test_operators_that_read_values_draw_in_every_nest(name, nest):
    x = torch.rand(2, 3, 3, dtype=torch.float64) * 0.8 + 0.1
    func = OF_VALUES[name]
    for randomness in reversed(nest):
        func = tl.vmap(func, randomness=randomness)
    torch.manual_seed(0)
    drawn = func(x)
    torch.manual_seed(0)
    assert torch.equal(drawn, func(x))
    assert drawn.shape[:2] == (2, 3)
