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


def joined(z):
    """Reads a number, then the pair, so that the pair's cotangent starts at an odd place."""
    pair = torch.view_as_real(z)
    return (torch.cat([torch.zeros(1), pair]) * torch.tensor([1.0, 2.0, 3.0])).sum()


def test_a_cotangent_that_starts_at_an_odd_place():
    z = torch.randn(3, dtype=torch.complex64)
    expected = torch.full_like(z, 2 + 3j)
    torch.testing.assert_close(tl.grad(joined)(z[0]), expected[0])
    torch.testing.assert_close(tl.vmap(tl.grad(joined))(z), expected)
    torch.testing.assert_close(tl.grad(lambda z: tl.vmap(joined)(z).sum())(z), expected)


def test_a_cotangent_with_rows_of_odd_length():
    z = torch.randn(1, 1, dtype=torch.complex64)
    pull = tl.vjp(lambda z: torch.view_as_real(z), z)[1]
    cotangent = torch.tensor([[[1.0, 2.0, 3.0]]])[..., 1:]  # contiguous, as its other sizes are 1
    torch.testing.assert_close(pull(cotangent), (torch.full_like(z, 2 + 3j),))
