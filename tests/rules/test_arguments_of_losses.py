"""Derivatives of losses by targets and weights, which torch refuses or gets wrong in reverse."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl

P = torch.tensor([0.0, 0.3, 1.0, 0.6], dtype=torch.float64)
TARGET = torch.tensor([0.2, 0.3, 0.7, 0.9], dtype=torch.float64)
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 0.1], dtype=torch.float64)
LOSSES = {
    "binary_cross_entropy by target": (
        lambda y, **options: F.binary_cross_entropy(P, y, WEIGHT, **options),
        TARGET,
    ),
    "binary_cross_entropy by weight": (
        lambda w, **options: F.binary_cross_entropy(P, TARGET, w, **options),
        WEIGHT,
    ),
    "binary_cross_entropy by a weight for all": (
        lambda w, **options: F.binary_cross_entropy(P, TARGET, w, **options),
        WEIGHT[1],
    ),
}


def differences(f, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    steps = 1e-4 * torch.eye(x.numel(), dtype=x.dtype).reshape(x.numel(), *x.shape)
    return torch.stack([(f(x + step) - f(x - step)) / 2e-4 for step in steps]).reshape(x.shape)


@pytest.mark.sweep
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_both_modes_agree_with_differences(name: str, reduction: str) -> None:
    """At probabilities of 0 and 1 too, where the loss clamps its logarithms."""
    loss, x = LOSSES[name]

    def f(x: Tensor) -> Tensor:
        return loss(x, reduction=reduction).sum()

    expected = differences(f, x)
    assert expected.isfinite().all()
    batched = tl.vmap(tl.grad(f))(torch.stack([x, x]))[1]
    for found in (tl.grad(f)(x), tl.jacfwd(f)(x), batched, tl.compile(tl.grad(f))(x)):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(tl.hessian(f)(x), tl.jacfwd(tl.jacfwd(f))(x))
