"""Derivatives by other means than forward mode, to hold it against."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.func
from torch import Tensor


def tangents_of(*primals: Tensor) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(11)
    return tuple(torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in primals)


def moved(primals: Sequence[Tensor], tangents: Sequence[Tensor], step: float) -> list[Tensor]:
    return [x + step * t for x, t in zip(primals, tangents, strict=True)]


def central_difference(
    f: Callable[..., Any], primals: Sequence[Tensor], tangents: Sequence[Tensor], step: float
) -> list[Tensor]:
    """(f(x + h t) - f(x - h t)) / 2h, for each of the tensors that f returns."""
    after = f(*moved(primals, tangents, step))
    before = f(*moved(primals, tangents, -step))
    return [(a - b) / (2 * step) for a, b in zip(after, before, strict=True)]


def pairing(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The real inner product of two lists of tensors."""
    products = [(a.conj() * b).sum() for a, b in zip(left, right, strict=True)]
    return torch.stack([p.real if p.is_complex() else p for p in products]).sum()


def gradient(
    f: Callable[..., Tensor], primals: Sequence[Tensor], cotangent: Tensor
) -> tuple[Tensor, ...]:
    """Reverse mode, as torch's autograd has it."""
    leaves = [x.detach().clone().requires_grad_() for x in primals]
    return torch.autograd.grad(f(*leaves), leaves, cotangent, materialize_grads=True)
