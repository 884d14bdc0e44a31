"""Derivatives by torchlayers, by plain autograd and by finite differences, for comparison.

Functions take tensors and return a list of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import torchlayers as tl

Function = Callable[..., list[Tensor]]
Pull = Callable[[Function, Sequence[Tensor], Sequence[Tensor]], list[Tensor]]


def tangents_of(*primals: Tensor) -> tuple[Tensor, ...]:
    return tuple(_random(primals, seed=11))


def cotangents_of(outputs: Sequence[Tensor], seed: int = 5) -> list[Tensor]:
    return _random(outputs, seed)


def _random(like: Sequence[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator("cpu").manual_seed(seed)
    return [
        torch.randn(x.shape, generator=generator, dtype=x.dtype, device="cpu").to(x.device)
        for x in like
    ]


def moved(primals: Sequence[Tensor], tangents: Sequence[Tensor], step: float) -> list[Tensor]:
    return [x + step * t for x, t in zip(primals, tangents, strict=True)]


def central_difference(
    f: Function, primals: Sequence[Tensor], tangents: Sequence[Tensor], step: float
) -> list[Tensor]:
    """(f(x + h t) - f(x - h t)) / 2h, for each tensor that f returns."""
    after = f(*moved(primals, tangents, step))
    before = f(*moved(primals, tangents, -step))
    return [(a - b) / (2 * step) for a, b in zip(after, before, strict=True)]


def pairing(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The real inner product of two lists of tensors."""
    products = [(a.conj() * b).sum() for a, b in zip(left, right, strict=True)]
    return torch.stack([p.real if p.is_complex() else p for p in products]).sum()


def ours(f: Function, primals: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """The cotangents of the primals, by tl.vjp."""
    return list(tl.vjp(f, *primals)[1](list(cotangents)))


def plain(f: Function, primals: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """The same by torch.autograd.grad, differentiable by plain autograd."""
    tracked = [x if x.requires_grad else x.clone().requires_grad_() for x in primals]
    pairs = zip(f(*tracked), cotangents, strict=True)
    connected = [(y, g) for y, g in pairs if y.requires_grad]
    if not connected:
        return [torch.zeros_like(x) for x in primals]
    gradients: Any = torch.autograd.grad(
        [y for y, _ in connected],
        tracked,
        [g for _, g in connected],
        create_graph=True,
        materialize_grads=True,
    )
    return list(gradients)


def twice(
    pull: Pull, f: Function, primals: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """Pulls the primals' cotangents back: cotangents of the primals and of the first cotangents."""
    count = len(primals)

    def pulled(*values: Tensor) -> list[Tensor]:
        return pull(f, values[:count], values[count:])

    return pull(pulled, [*primals, *cotangents], cotangents_of(primals, seed=6))
