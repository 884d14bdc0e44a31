"""The rows of a Jacobian: one tensor, or the diagonal where an element depends on one input."""

from typing import NamedTuple

import torch
from torch import Tensor


class Diagonal(NamedTuple):
    """Rows of a value whose elements are functions of one input element each, in order.

    Row ``start + j`` is zero but for element j of the value, which is element j of ``scale``.

    Attributes:
        scale: has the shape of the value.
        is_one: whether scale is one everywhere.
        start: the position of the first element among all inputs.
        total: how many rows there are.
    """

    scale: Tensor
    is_one: bool
    start: int
    total: int

    def scaled(self, factor: Tensor | float) -> "Diagonal":
        return self.replaced(self.scale * factor)

    def replaced(self, scale: Tensor) -> "Diagonal":
        return self._replace(scale=scale, is_one=False)

    def within(self, rows: Tensor) -> Tensor:
        """All rows, from those of this value's own inputs; the others are zeros."""
        if len(rows) == self.total:
            return rows
        after = self.total - self.start - len(rows)
        sizes = rows.shape[1:]
        return torch.cat(
            [rows.new_zeros(self.start, *sizes), rows, rows.new_zeros(after, *sizes)], 0
        )

    def identity(self, dtype: torch.dtype | None = None) -> Tensor:
        """The rows of this value's own inputs, without the scale."""
        count = self.scale.numel()
        # From sizes alone, so that under vmap it is the same tensor for all samples.
        eye = torch.eye(count, dtype=dtype or self.scale.dtype, device=self.scale.device)
        return eye.view(count, *self.scale.shape)

    def times_scale(self, rows: Tensor) -> Tensor:
        """Rows that were computed by a linear operator from those of the identity, scaled."""
        if self.is_one:
            return rows
        return rows * self.scale.reshape(-1, *[1] * (rows.dim() - 1))


Rows = Tensor | Diagonal


def dense(rows: Rows, value: Tensor) -> Tensor:
    """The rows as one tensor, of shape ``(k, *value.shape)``."""
    if not isinstance(rows, Diagonal):
        return rows
    return rows.within(rows.times_scale(rows.identity()))


def scaled(rows: Rows, factor: Tensor | float) -> Rows:
    """The rows times a factor of the value's shape, or a number."""
    if isinstance(factor, (int, float)) and factor == 1:
        return rows
    return rows.scaled(factor) if isinstance(rows, Diagonal) else rows * factor


def added(left: Rows, right: Rows, value: Tensor) -> Rows:
    """The sum of two values' rows, each broadcast to the shape of value already."""
    if isinstance(left, Diagonal) and isinstance(right, Diagonal) and left.start == right.start:
        return left.replaced(left.scale + right.scale)
    return dense(left, value) + dense(right, value)


def converted(rows: Rows, dtype: torch.dtype) -> Rows:
    if isinstance(rows, Diagonal):
        return rows if rows.scale.dtype == dtype else rows._replace(scale=rows.scale.to(dtype))
    return rows if rows.dtype == dtype else rows.to(dtype)


def resolved(rows: Tensor) -> Tensor:
    """The rows without the conjugate and negative bits, which linear operators may set: an operator
    that the value's bits allow need not take those of the rows."""
    return rows.resolve_conj().resolve_neg()


def aligned(rows: Tensor, ndim: int) -> Tensor:
    """The rows, with dimensions of size 1 so that they broadcast as a value does to ndim
    dimensions."""
    missing = ndim - (rows.dim() - 1)
    if missing <= 0:
        return rows
    return rows.reshape(rows.shape[0], *[1] * missing, *rows.shape[1:])


def broadcast(rows: Rows, value: Tensor, shape: torch.Size) -> Rows:
    """The rows of the value, when that is broadcast to a shape."""
    if value.shape == shape:
        return rows
    full = aligned(dense(rows, value), len(shape))
    return full.expand(full.shape[0], *shape)
