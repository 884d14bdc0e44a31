"""An operator without a known derivative is rejected instead of losing its tangent."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

X = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)

UNKNOWN = {
    "igamma": lambda a: torch.igamma(a, X),
    "igammac": lambda a: torch.igammac(a, X),
    "zeta": lambda s: torch.special.zeta(s + 1, X),
    "zeta of a number": lambda s: torch.special.zeta(s + 1, 2.0),
    "geqrf": lambda x: torch.geqrf(torch.outer(x, x)),
}


@pytest.mark.parametrize("f", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_operator_without_a_derivative_is_refused(f):
    with pytest.raises(NotImplementedError, match=r"^torchlayers: jvp.* can't differentiate"):
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
