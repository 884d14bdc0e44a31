"""Elementary functions of power series.

With y = f(x) and y' = f'(x) x', the coefficients of y follow from those of x and of f'(x). The
latter is itself a series: a function of x, and of y as far as it is known.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.series import (
    Coefficient,
    Series,
    composed,
    constant,
    integral,
    recursive,
)
from torchlayers.transforms.layers.slopes import slope_of

# Logarithms: their derivative is a / (x + b).
LOGARITHMS: dict[str, tuple[float, float]] = {
    "log": (1, 0),
    "log10": (1 / math.log(10), 0),
    "log1p": (1, 1),
    "log2": (1 / math.log(2), 0),
}


def function(name: str, x: Series, value: Tensor | None = None) -> Series:
    """A logarithm, or a function whose derivative csrc/rules states as a + b y + c y^2, of a
    series; value is the operator's result at x[0]."""
    op = getattr(aten, name).default
    if value is None:
        value = op(x[0])
    if name not in LOGARITHMS:
        a, b, c = slope_of(op)

        def slope(y: Series) -> Series:
            terms = y.square() * c if c else constant(None)
            return (terms + y * b if b else terms) + (a or None)

        return solution(value, slope, x)
    factor, shift = LOGARITHMS[name]
    return solution(value, lambda y: factor / (x + (shift or None)), x)


def solution(first: Any, slope: Callable[[Series], Series], x: Series) -> Series:
    """The series y that starts with `first`, and for which y' = slope(y) x'."""
    dx = x.derivative()
    return recursive(first, lambda y: integral(first, slope(y) * dx))


def exp(x: Series, value: Tensor | None = None) -> Series:
    return function("exp", x, value)


def log(x: Series) -> Series:
    return function("log", x)


def rsqrt(x: Series, value: Tensor | None = None) -> Series:
    first = torch.rsqrt(x[0]) if value is None else value
    return solution(first, lambda y: y * y.square() * -0.5, x)


def root(x: Series, value: Tensor) -> Series:
    """The square root of a series, whose derivatives are zero where it is zero."""
    is_zero = value == 0
    y = solution(torch.where(is_zero, 1, value), lambda y: 0.5 / y, x)
    return Series(lambda k: None if y[k] is None else torch.where(is_zero, 0, y[k]), value)


def power(x: Series, exponent: Any, value: Tensor | None = None) -> Series:
    """A series to a power that is a Python number."""
    if value is None:
        value = torch.pow(x[0], exponent)
    if isinstance(exponent, complex):
        return solution(value, lambda y: y / x * exponent, x)
    if exponent in (0, 1, 2, 3):
        powers = [constant(value), x, x.square(), x * x.square()]
        return powers[int(exponent)]

    def derivative(n: int) -> Coefficient:
        """At x[0], which may be zero or infinite, so that y / x is not a number."""
        factor = math.prod(exponent - i for i in range(n))
        return value if n == 0 else None if factor == 0 else torch.pow(x[0], exponent - n) * factor

    return composed(derivative, x)


def absolute(x: Series, value: Tensor | None = None) -> Series:
    if not x[0].is_complex():
        signs = x[0].sgn()
        return x.map(lambda c: c * signs)
    value = x[0].abs() if value is None else value
    return root(x.map(torch.real).square() + x.map(torch.imag).square(), value)


def where(condition: Tensor, x: Series, y: Series | None = None) -> Series:
    """The series x where the condition holds, and y elsewhere, or zero."""

    def compute(k: int) -> Any:
        chosen = x[k], None if y is None else y[k]
        if all(c is None for c in chosen):
            return None
        return torch.where(condition, *(0 if c is None else c for c in chosen))

    return Series(compute)
