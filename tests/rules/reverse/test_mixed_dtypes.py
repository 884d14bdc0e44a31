"""Operators that promote their operands give each of them a gradient in its own dtype."""

import itertools

import pytest
import torch

import torchlayers as tl

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
OPERATORS = {
    "mul": torch.mul,
    "div": torch.div,
    "outer": torch.outer,
    "addr": lambda x, y: torch.addr(torch.ones(3, 3), x, y),
    "where": lambda x, y: torch.where(torch.tensor([True, False, True]), x, y),
    "stack": lambda x, y: torch.stack([x, y]),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize(
    "dtypes",
    [*itertools.permutations(DTYPES, 2)],
    ids=lambda pair: "-".join(str(dtype).removeprefix("torch.") for dtype in pair),
)
def test_gradients_have_the_dtypes_of_their_arguments(operator, dtypes):
    x, y = (torch.tensor([0.5, -1.5, 2.0]).to(dtype) for dtype in dtypes)

    def value(x, y):
        return operator(x, y).abs().square().sum()

    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    both = torch.promote_types(*dtypes)  # plain autograd rejects some of these without promotion
    expected = torch.autograd.grad(value(*(leaf.to(both) for leaf in leaves)), leaves)
    torch.testing.assert_close(tl.grad(value, argnums=(0, 1))(x, y), expected)
