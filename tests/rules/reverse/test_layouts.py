"""Gradients have the same memory layout as plain autograd's."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

NORMS = {
    "group_norm": lambda x: F.group_norm(x, 3),
    "instance_norm": F.instance_norm,
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("norm", NORMS)
def test_norms_keep_channels_last(norm, layout):
    def f(x):
        return NORMS[norm](x).sin().sum()

    x = torch.randn(2, 3, 4, 4, dtype=torch.float64).to(memory_format=layout)
    tracked = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(tracked), tracked, create_graph=True)
    found = tl.grad(f)(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    (expected,) = torch.autograd.grad(expected.square().sum(), tracked)
    found = tl.grad(lambda x: tl.grad(f)(x).square().sum())(x)
    torch.testing.assert_close(found, expected)
