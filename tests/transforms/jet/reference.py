"""Derivatives along a curve by nested jvps, for comparison, and random curves."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import torchlayers as tl


def curves(primals: Sequence[Tensor], order: int) -> tuple[list[Tensor], ...]:
    """Random derivatives of orders 1 to `order` for each primal."""
    generator = torch.Generator().manual_seed(3)
    return tuple(
        [0.5 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(order)]
        for x in primals
    )


def by_nested_jvps(
    f: Callable[..., list[Tensor]],
    primals: Sequence[Tensor],
    series: Sequence[Sequence[Tensor]],
) -> list[list[Tensor]]:
    """[f, f', f'', ...] along the curve, each a list of tensors as f returns."""

    def at(t: Tensor) -> list[Tensor]:
        return f(*(_polynomial(x, terms, t) for x, terms in zip(primals, series, strict=True)))

    def derivative(n: int) -> Callable[[Tensor], Any]:
        if n == 0:
            return lambda t: (at(t), [])
        lower = derivative(n - 1)

        def differentiated(t: Tensor) -> Any:
            last, slope, before = tl.jvp(lower, (t,), (torch.ones_like(t),), has_aux=True)
            return slope, [*before, last]

        return differentiated

    last, before = derivative(len(series[0]))(torch.zeros((), dtype=torch.float64))
    return [*before, last]


def _polynomial(x: Tensor, terms: Sequence[Tensor], t: Tensor) -> Tensor:
    for n, term in enumerate(terms, 1):
        x = x + term * (t**n / math.factorial(n))
    return x


def by_jet(
    f: Callable[..., list[Tensor]],
    primals: Sequence[Tensor],
    series: Sequence[Sequence[Tensor]],
) -> list[list[Tensor]]:
    value, derivatives = tl.jet(f, tuple(primals), tuple(series))
    return [value, *derivatives]
