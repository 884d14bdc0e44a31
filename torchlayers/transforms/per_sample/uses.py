"""Operator calls that use a weight, for one sample, and the weight's gradient from each."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Rows = tuple[Tensor, Tensor]  # left and right, each groups x positions x features


class Use(ABC):
    """An operator call that uses a weight, for one sample.

    x is the operator's input, and g the cotangent of its output, set during the backward pass.
    """

    def __init__(self, weight: Tensor, x: Tensor) -> None:
        self.weight, self.x = weight, x
        self.shape = weight.shape
        self.g: Tensor | None = None

    @property
    def wide_operands(self) -> tuple[Tensor, Tensor]:
        """x and g, widened to float32, because half precision is too narrow for squares."""
        assert self.g is not None
        return wide(self.x), wide(self.g)

    def residuals(self) -> tuple[Tensor, Tensor]:
        """Returns this sample's residuals for `total`."""
        assert self.g is not None
        return self.x, self.g

    def forget(self) -> None:
        del self.weight, self.x, self.g

    @abstractmethod
    def gradient(self) -> Tensor:
        """Returns the weight's gradient, in the weight's shape."""

    @abstractmethod
    def total(self, x: Tensor, g: Tensor) -> Tensor:
        """Returns the sum of the samples' gradients; x and g have the samples in dimension 0."""


class Product(Use):
    """A use whose gradient is left.mT @ right for each group."""

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Returns T, p and q (see the package's docstring)."""

    @abstractmethod
    def rows(self) -> Rows: ...

    def parts(self) -> Iterator[Tensor]:
        """Yields the gradient in parts, split along its last dimension."""
        left, right = self.rows()
        yield left.mT @ right

    def gradient(self) -> Tensor:
        return torch.cat(list(self.parts()), -1).reshape(self.shape)


class Linear(Product):
    """Rows times a matrix; left and right are ordered so that the product is the gradient."""

    def __init__(self, weight: Tensor, x: Tensor, is_transposed: bool) -> None:
        super().__init__(weight, x)
        self.is_transposed = is_transposed  # whether the matrix is outputs x inputs

    def sizes(self) -> tuple[int, int, int]:
        p, q = self.shape
        return _positions(self.x), p, q

    def rows(self) -> Rows:
        x, g = (
            tensor.reshape(1, _positions(tensor), tensor.shape[-1]) for tensor in self.wide_operands
        )
        return (g, x) if self.is_transposed else (x, g)

    def total(self, x: Tensor, g: Tensor) -> Tensor:
        x, g = (tensor.reshape(_positions(tensor), tensor.shape[-1]) for tensor in (x, g))
        return g.mT @ x if self.is_transposed else x.mT @ g


class Lookup(Use):
    """Rows of a weight, looked up by index. Cotangents of the padding row are zero."""

    def __init__(self, weight: Tensor, x: Tensor, padding: int, by_frequency: bool) -> None:
        super().__init__(weight, x)
        self.padding = padding
        self.by_frequency = by_frequency

    @property
    def wide_operands(self) -> tuple[Tensor, Tensor]:
        """The indices (T) and the cotangents (T x q)."""
        assert self.g is not None
        numbers = self.x.flatten()
        g = wide(self.g).reshape(len(numbers), self.shape[1])
        if self.padding >= 0:
            g = g * (numbers != self.padding).unsqueeze(-1)
        if self.by_frequency:
            g = g / (numbers.unsqueeze(0) == numbers.unsqueeze(1)).sum(0).unsqueeze(-1)
        return numbers, g

    def residuals(self) -> tuple[Tensor, Tensor]:
        return self.wide_operands

    def gradient(self) -> Tensor:
        return rows_added(*self.wide_operands, self.shape[0])

    def total(self, x: Tensor, g: Tensor) -> Tensor:
        return rows_added(x.flatten(), g.flatten(0, 1), self.shape[0])


def sum_gradients(uses: Sequence[Use], besides: Tensor | None = None) -> Tensor:
    """Returns the sum of the uses' gradients and of `besides`."""
    return add_parts([use.gradient() for use in uses] + ([] if besides is None else [besides]))


def add_parts(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def rows_added(numbers: Tensor, g: Tensor, count: int) -> Tensor:
    return g.new_zeros(count, g.shape[1]).index_add(0, numbers, g)


def _positions(rows: Tensor) -> int:
    return rows.numel() // max(1, rows.shape[-1])
