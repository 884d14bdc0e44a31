"""Derivatives in float32 lose no more digits than necessary."""

import pytest
import torch

import torchlayers as tl


@pytest.mark.parametrize("length", [20, 300, 3000])
def test_logcumsumexp_is_summed_up_without_drift(length):
    generator = torch.Generator().manual_seed(3)
    x, t = torch.randn(2, length, generator=generator)

    def f(x):
        return x.logcumsumexp(0)

    def worst(found, expected):
        return (found - expected).abs().max()

    exact = torch.func.jvp(f, (x.double(),), (t.double(),))[1]
    assert worst(tl.jvp(f, (x,), (t,))[1], exact) < 1e-5
    exact = torch.func.vjp(f, x.double())[1](t.double())[0]
    assert worst(tl.vjp(f, x)[1](t)[0], exact) < 2e-5 * exact.abs().max()
