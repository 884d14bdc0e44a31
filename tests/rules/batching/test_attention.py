"""Attention with a learned mask, and with rows that are masked entirely."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from tests.rules.batching.samples import values
from tests.support.nests import Function, Nest, as_alone, batch, nests

Q, K, V = values(2, 2, 3, 4), values(2, 2, 5, 4) + 1, values(2, 2, 5, 4).sin()


def by_mask(mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)


def by_mask_and_query(x: Tensor) -> Tensor:
    q = Q + x.sum(-1)[..., None]
    return F.scaled_dot_product_attention(q, K, V, attn_mask=x, scale=0.3)


def by_written_mask(x: Tensor) -> Tensor:
    mask = torch.zeros(3, 5, dtype=torch.float64)
    mask[1] = x[0]
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)


@nests
@pytest.mark.parametrize(
    ("f", "sizes"),
    [
        (by_mask, (3, 5)),
        (by_mask, (2, 3, 5)),
        (by_mask, (2, 1, 3, 5)),
        (by_mask_and_query, (2, 3, 5)),
        (by_written_mask, (3, 5)),
    ],
)
def test_a_mask_has_derivatives_in_every_nest(
    f: Function, sizes: tuple[int, ...], nest: Nest
) -> None:
    as_alone(f, f, nest, batch(nest, *sizes))


def test_a_mask_has_a_gradient_outside_of_vmap() -> None:
    masks = values(4, 3, 5).requires_grad_()
    ours = torch.autograd.grad(tl.vmap(by_mask)(masks).square().sum(), masks)
    alone = torch.stack([by_mask(mask) for mask in masks])
    torch.testing.assert_close(ours, torch.autograd.grad(alone.square().sum(), masks))


@pytest.mark.parametrize("is_bool", [False, True], ids=["numbers", "bools"])
def test_a_row_that_may_look_at_nothing_is_zero(is_bool: bool) -> None:
    mask = values(3, 5).masked_fill(torch.eye(3, 5, dtype=torch.bool), -math.inf)
    mask[1] = -math.inf
    seen = mask > -math.inf if is_bool else mask

    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, K, V, attn_mask=seen)

    value, tangent = tl.jvp(attention, (Q,), (Q.cos(),))
    torch.testing.assert_close(value, attention(Q))
    step = 1e-6 * Q.cos()
    torch.testing.assert_close(tangent, (attention(Q + step) - attention(Q - step)) / 2e-6)
    assert not value[:, :, 1].any() and not tangent[:, :, 1].any()
