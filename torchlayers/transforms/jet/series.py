"""Power series with tensors as coefficients.

A series stands for x(t) = x[0] + x[1] t + x[2] t^2 + ...: its coefficients are derivatives divided
by factorials, which makes the product of two series a plain convolution. Each coefficient is
computed when it is first read, from lower ones, and kept. So a series may be defined by itself, as
the exponential function is by y' = y x':

    recursive(x[0].exp(), lambda y: integral(x[0].exp(), y * x.derivative()))

Source: Griewank and Walther, "Evaluating Derivatives" (2008), chapter 13; lazy series as in
    McIlroy, "Power Series, Power Serious" (1999).
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# A tensor or a Python number; None for a coefficient that is zero.
Coefficient = Any


class Series:
    """A power series.

    Args:
        compute: returns the coefficient at a position.
        first: the coefficient at position 0, if it is known already.
    """

    is_constant = False

    def __init__(self, compute: Callable[[int], Coefficient], first: Coefficient = None) -> None:
        self._compute = compute
        self._known = [] if first is None else [first]

    def __getitem__(self, k: int) -> Coefficient:
        while len(self._known) <= k:
            self._known.append(self._compute(len(self._known)))
        return self._known[k]

    def derivative(self) -> "Series":
        return Series(lambda k: times(self[k + 1], k + 1))

    def map(self, function: Callable[[Any], Any]) -> "Series":
        """Applies a linear function to each coefficient."""
        return Series(lambda k: None if self[k] is None else function(self[k]))

    def square(self) -> "Series":
        return Series(lambda k: squared(times, self, k))

    def __add__(self, other: Any) -> "Series":
        other = as_series(other)
        return Series(lambda k: plus(self[k], other[k]))

    def __neg__(self) -> "Series":
        return self.map(lambda c: -c)

    def __sub__(self, other: Any) -> "Series":
        return self.__add__(-as_series(other))

    def __rsub__(self, other: Any) -> "Series":
        return as_series(other).__sub__(self)

    def __mul__(self, other: Any) -> "Series":
        if not isinstance(other, Series):
            return self.map(lambda c: times(c, other))
        return self.square() if other is self else bilinear(times, self, other)

    def __truediv__(self, other: Any) -> "Series":
        if not isinstance(other, Series):
            return self.map(lambda c: c / other)
        first = None if self[0] is None else self[0] / other[0]
        return recursive(first, lambda y: _quotient(self, other, first, y))

    def __rtruediv__(self, other: Any) -> "Series":
        return as_series(other) / self

    __radd__ = __add__
    __rmul__ = __mul__


def constant(value: Coefficient) -> Series:
    series = Series(lambda k: None, value)
    series.is_constant = True
    return series


def as_series(value: Any) -> Series:
    return value if isinstance(value, Series) else constant(value)


def in_dtype(x: Series, dtype: torch.dtype) -> Series:
    """A series of tensors in another dtype: its square is to have that one's digits."""
    return x if x[0].dtype == dtype else x.map(lambda c: c.to(dtype))


def integral(first: Coefficient, integrand: Series) -> Series:
    """The series that starts with `first` and has this derivative."""

    def compute(k: int) -> Coefficient:
        return None if integrand[k - 1] is None else integrand[k - 1] / k

    return Series(compute, first)


def bilinear(function: Callable[[Any, Any], Any], a: Series, b: Series) -> Series:
    """A product of two series, by what multiplies two coefficients."""
    return Series(lambda k: convolved(function, a, b, k))


def recursive(first: Coefficient, define: Callable[[Series], Series]) -> Series:
    """The series that equals what `define` makes of it, each coefficient from lower ones."""
    reference: weakref.ref[
        Series
    ]  # weak, so that the series is freed without the garbage collector
    itself = Series(lambda k: reference()[k], first)  # type: ignore[index]
    series = define(itself)
    reference = weakref.ref(series)
    return series


def deferred(make: Callable[[], Series]) -> Series:
    """A series that is made when a coefficient is read."""
    cached = functools.cache(make)
    return Series(lambda k: cached()[k])


def composed(derivative: Callable[[int], Coefficient], x: Series, n: int = 0) -> Series:
    """A function of a series, by its derivatives at x[0]: derivative(n) is the n-th."""
    first = derivative(n)
    if first is None:
        return Series(lambda k: None)
    slope = deferred(lambda: composed(derivative, x, n + 1))
    return integral(first, slope * x.derivative())


def convolved(
    function: Callable[[Any, Any], Any], a: Series, b: Series, k: int, start: int = 0
) -> Coefficient:
    """The sum of function(a[i], b[k - i]) for i from `start` to k."""
    total = None
    for i in range(start, k + 1):
        left = a[i]
        right = None if left is None else b[k - i]
        if right is not None:
            total = plus(total, function(left, right))
    return total


def squared(multiply: Callable[[Any, Any], Any], x: Series, k: int) -> Coefficient:
    """A coefficient of x times itself, for a commutative product."""
    total = None
    for i in range((k + 1) // 2):
        if x[i] is not None and x[k - i] is not None:
            total = plus(total, multiply(x[i], x[k - i]))
    middle = x[k // 2] if k % 2 == 0 else None
    return plus(times(total, 2), None if middle is None else multiply(middle, middle))


def plus(a: Coefficient, b: Coefficient) -> Coefficient:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def minus(a: Coefficient, b: Coefficient) -> Coefficient:
    if a is None or b is None:
        return a if b is None else -b
    return a - b


def times(a: Coefficient, b: Coefficient) -> Coefficient:
    if a is None or b is None:
        return None
    if isinstance(a, (int, float)) and not isinstance(b, (int, float)):
        a, b = b, a
    return a if isinstance(b, (int, float)) and b == 1 else a * b


def fitted(coefficient: Coefficient, value: Tensor) -> Tensor:
    """Gives a coefficient the shape and dtype of the value that it belongs to."""
    if not isinstance(coefficient, Tensor):
        return value.new_full(value.shape, coefficient)
    tensor = coefficient if coefficient.dtype == value.dtype else coefficient.to(value.dtype)
    return tensor if tensor.shape == value.shape else tensor.expand(value.shape)


def _quotient(a: Series, b: Series, first: Coefficient, y: Series) -> Series:
    def compute(k: int) -> Coefficient:
        rest = minus(a[k], convolved(times, b, y, k, 1))
        return None if rest is None else rest / b[0]

    return Series(compute, first)
