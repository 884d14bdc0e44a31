"""Squared norms of a weight's gradient, computed from the uses of the weight."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchlayers.transforms.per_sample.uses import Lookup, Product, Use, rows_added


def squares(uses: Sequence[Use]) -> Tensor | None:
    """Returns the squared norm of the sum of the uses' gradients.

    None if it is cheaper to compute from the gradients.
    """
    products = [use for use in uses if isinstance(use, Product)]
    lookups = [use.wide_operands for use in uses if isinstance(use, Lookup)]
    if products:
        sizes = [use.sizes() for use in products]
        (_, p, q), positions = sizes[0], sum(size for size, _, _ in sizes)
        if positions > 1 and positions * (p + q) > p * q:
            return None
    total: Any = 0
    if products:
        cut = [use.rows() for use in products]
        left, right = (_join(tensors, 1) for tensors in zip(*cut, strict=True))
        total = _square_product(left, right)
    if lookups:
        numbers, g = (_join(tensors, 0) for tensors in zip(*lookups, strict=True))
        total = total + _square_lookups(numbers, g)
        if products:
            # Inner product of the lookups' gradient with the products' gradient.
            total = total + 2 * dot(right[0] @ g.mT, left[0].index_select(1, numbers))
    assert isinstance(total, Tensor)
    return total


def _join(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _square_product(left: Tensor, right: Tensor) -> Tensor:
    if left.shape[1] == 1:
        return (left.square().sum((1, 2)) * right.square().sum((1, 2))).sum()
    return dot(left @ left.mT, right @ right.mT)


def _square_lookups(numbers: Tensor, g: Tensor) -> Tensor:
    positions, size = g.shape
    if positions == 1:
        return g.square().sum()
    if positions <= size:
        alike = numbers.unsqueeze(0) == numbers.unsqueeze(1)
        return dot(g @ g.mT, alike.to(g.dtype))
    order = numbers.argsort()
    differs = numbers[order].diff() != 0
    places = F.pad(differs.cumsum(0), (1, 0))
    rows = rows_added(places, g[order], positions)
    return dot(rows, rows)


def squares_by_parts(use: Use) -> Tensor | None:
    """Returns the squared norm of a product's gradient, computed part by part; else None."""
    if not isinstance(use, Product):
        return None
    total: Any = 0
    for part in use.parts():
        total = total + dot(part, part)
    assert isinstance(total, Tensor)
    return total


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Returns the sum of a * b, without materializing a * b."""
    return (a.reshape(1, a.numel()) @ b.reshape(b.numel(), 1)).reshape(())
