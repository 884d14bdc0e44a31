"""Selecting one element of a sample: the derivative at ties and at nan, in nests."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.support.nests import Nest, as_alone, nests

ROWS = torch.tensor(
    [
        [1.0, 2.0, 2.0, 0.0],
        [math.nan, 1.0, math.nan, 2.0],
        [3.0, 3.0, 3.0, 3.0],
        [0.1, 0.1, 0.1, -math.inf],
        [math.inf, math.inf, -math.inf, -math.inf],
        [math.nan] * 4,
        [-math.inf] * 4,
    ],
    dtype=torch.float64,
)
SAMPLES = torch.stack([ROWS, ROWS.flip(1)], 1)  # each sample has two rows
Choice = Callable[[Tensor], Tensor]
CHOICES: list[Choice] = [torch.max, torch.min, torch.median, torch.nanmedian]


@nests
@pytest.mark.parametrize("choose", CHOICES)
def test_ties_share_a_derivative(choose: Choice, nest: Nest) -> None:
    batch = {0: SAMPLES[1], 1: SAMPLES, 2: torch.stack([SAMPLES, SAMPLES.flip(0)])}
    as_alone(choose, choose, nest, batch[nest.count("vmap")])


@pytest.mark.parametrize("choose", CHOICES)
def test_gradients_are_those_of_plain_autograd(choose: Choice) -> None:
    def gradient(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(choose(x), x)[0]

    x = SAMPLES.clone().requires_grad_()
    ours = torch.autograd.grad(tl.vmap(choose)(x).sum(), x)[0]
    torch.testing.assert_close(ours, torch.stack([gradient(row) for row in SAMPLES]))


MEDIANS: dict[str, Choice] = {
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "median along": lambda x: x.median(0).values,
    "median along, kept": lambda x: x.median(-2, keepdim=True).values,
    "nanmedian along": lambda x: x.nanmedian(0).values,
    "where the median is": lambda x: x.gather(0, x.median(0, keepdim=True).indices),
}


@pytest.mark.parametrize("choose", MEDIANS.values(), ids=MEDIANS)
def test_a_median_is_of_a_sample_that_is_expanded(choose: Choice) -> None:
    """torch's kernels read past the expanded memory."""
    rows = torch.randn(4, 3, dtype=torch.float64)
    expected = choose(torch.zeros(5, 3)).shape
    for samples in (rows[:, None].expand(4, 5, 3), rows[:, :1, None].expand(4, 5, 3)):
        found = tl.vmap(choose)(samples)
        assert found.shape == (4, *expected)
        assert torch.equal(found, torch.stack([choose(x.contiguous()) for x in samples]))
        nested = tl.vmap(tl.vmap(choose))(samples.expand(2, 4, 5, 3))
        assert torch.equal(nested, found.expand_as(nested))
