"""Pooling of images whose samples lie beside the channels, as convolutions by sample leave them."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import torchlayers as tl

POOLS = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max, overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[1].to(x.dtype),
    "average": lambda x: F.avg_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2),
}
SIZES = [(5, 3, 2, 4, 4), (1, 3, 2, 4, 4), (5, 1, 2, 4, 4), (5, 3, 1, 4, 4)]


def images(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_values_and_derivatives(pool, sizes):
    x = images(*sizes)

    def loss(x):  # type: ignore[no-untyped-def]
        return pool(x).sin().sum()

    for func in (pool, tl.grad(loss), tl.hessian(loss)):
        given = x[:2] if func is not pool else x
        expected = torch.stack([func(each) for each in given.unbind(1)])
        assert_close(tl.vmap(func, in_dims=1)(given), expected)


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_results_lie_beside_channels(pool):
    x = images(5, 3, 2, 4, 4)
    assert tl.vmap(pool, in_dims=1, out_dims=1)(x).is_contiguous()
    assert tl.vmap(pool)(x).is_contiguous()
