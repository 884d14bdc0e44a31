"""An operator of whose derivative nobody knows is refused: its tangent is not lost."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

X = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)

UNKNOWN = {
    "igamma": lambda x: torch.igamma(torch.ones_like(x), x),
    "igammac": lambda x: torch.igammac(torch.ones_like(x), x),
    "zeta": lambda x: torch.special.zeta(x + 1, 2.0),
    "index_reduce": lambda x: X.index_reduce(0, torch.tensor([0, 1, 0]), x, "mean"),
}


@pytest.mark.parametrize("f", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_operator_without_a_derivative_is_refused(f):
    with pytest.raises(NotImplementedError, match=r"^torchlayers: jvp .* can't differentiate"):
        tl.jvp(f, (X,), (X,))
    assert tl.current_stack() == ()


def test_an_empty_batch_is_normalised():
    empty = torch.empty(0, 2, 3)
    output, tangent = tl.jvp(lambda x: F.group_norm(x, 2), (empty,), (empty,))
    assert output.shape == tangent.shape == empty.shape


@pytest.mark.parametrize("order", [torch.inf, -torch.inf])
def test_the_extreme_of_nan_has_a_tangent_of_zero_as_it_has_a_gradient_of_zero(order):
    x, direction = torch.tensor([torch.nan, 2.0]), torch.ones(2)

    def norm(x):
        return torch.linalg.vector_norm(x, order)

    value, tangent = tl.jvp(norm, (x,), (direction,))
    assert value.isnan()
    assert tangent == tl.grad(norm)(x) @ direction == 0
