"""Gradients of complex tensors seen as pairs of real numbers."""

import pytest
import torch

import torchlayers as tl


@pytest.mark.parametrize("shape", [(1, 0), (0,), (0, 2), (2,), (2, 3)], ids=str)
def test_a_cotangent_that_is_expanded(shape):
    """contiguous() keeps the strides of a tensor without elements."""
    z = torch.randn(shape, dtype=torch.complex64)
    gradient = tl.grad(lambda z: torch.view_as_real(z).sum(-1).sum())(z)
    torch.testing.assert_close(gradient, torch.full_like(z, 1 + 1j))


def test_a_gradient_of_a_jacobian_of_no_elements():
    constant = torch.zeros(1, 0, dtype=torch.complex64)
    x = torch.zeros(1, 0)
    pull = tl.vjp(tl.jacfwd(lambda x: torch.view_as_real(constant + x.sum()).sum(-1)), x)[1]
    torch.testing.assert_close(pull(torch.zeros(1, 0, 1, 0)), (x,))
