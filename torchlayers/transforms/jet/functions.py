"""Elementary functions of power series.

With y = f(x) and y' = f'(x) x', the coefficients of y follow from those of x and of f'(x). The
latter is itself a series: a function of x, and of y as far as it is known.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.jet.series import (
    Series,
    constant,
    deferred,
    integral,
    recursive,
)

aten: Any = torch.ops.aten

# The derivative of a function at x, where its value is y, by the name of its operator.
DERIVATIVES: dict[str, Callable[[Series, Series], Series]] = {
    "acos": lambda x, y: -rsqrt(1 - x.square()),
    "acosh": lambda x, y: rsqrt(x.square() - 1),
    "asin": lambda x, y: rsqrt(1 - x.square()),
    "asinh": lambda x, y: rsqrt(x.square() + 1),
    "atan": lambda x, y: 1 / (x.square() + 1),
    "atanh": lambda x, y: 1 / (1 - x.square()),
    "cos": lambda x, y: -integral(x[0].sin(), y * x.derivative()),
    "cosh": lambda x, y: integral(x[0].sinh(), y * x.derivative()),
    "erf": lambda x, y: exp(-x.square()) * (2 / math.sqrt(math.pi)),
    "erfc": lambda x, y: exp(-x.square()) * (-2 / math.sqrt(math.pi)),
    "erfinv": lambda x, y: exp(y.square()) * (math.sqrt(math.pi) / 2),
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * math.log(2),
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "log10": lambda x, y: 1 / (x * math.log(10)),
    "log1p": lambda x, y: 1 / (x + 1),
    "log2": lambda x, y: 1 / (x * math.log(2)),
    "reciprocal": lambda x, y: -y.square(),
    "rsqrt": lambda x, y: y * y.square() * -0.5,
    "sigmoid": lambda x, y: y - y.square(),
    "sin": lambda x, y: integral(x[0].cos(), -(y * x.derivative())),
    "sinh": lambda x, y: integral(x[0].cosh(), y * x.derivative()),
    "special_erfcx": lambda x, y: x * y * 2 - 2 / math.sqrt(math.pi),
    "special_log_ndtr": lambda x, y: exp(x.square() * -0.5 - y) / math.sqrt(2 * math.pi),
    "special_ndtri": lambda x, y: exp(y.square() * 0.5) * math.sqrt(2 * math.pi),
    "sqrt": lambda x, y: 0.5 / y,
    "tan": lambda x, y: y.square() + 1,
    "tanh": lambda x, y: 1 - y.square(),
}


def function(name: str, x: Series, value: Tensor | None = None) -> Series:
    """A function of DERIVATIVES of a series; value is the operator's result at x[0]."""
    if value is None:
        value = getattr(aten, name)(x[0])
    return solution(value, lambda y: DERIVATIVES[name](x, y), x)


def solution(first: Any, slope: Callable[[Series], Series], x: Series) -> Series:
    """The series y that starts with `first`, and for which y' = slope(y) x'."""
    dx = x.derivative()
    return recursive(first, lambda y: integral(first, slope(y) * dx))


def exp(x: Series, value: Tensor | None = None) -> Series:
    return function("exp", x, value)


def log(x: Series) -> Series:
    return function("log", x)


def rsqrt(x: Series, value: Tensor | None = None) -> Series:
    return function("rsqrt", x, value)


def sigmoid(x: Series, value: Tensor | None = None) -> Series:
    return function("sigmoid", x, value)


def tanh(x: Series, value: Tensor | None = None) -> Series:
    return function("tanh", x, value)


def root(x: Series, value: Tensor) -> Series:
    """The square root of a series, whose derivatives are zero where it is zero."""
    is_zero = value == 0
    y = function("sqrt", x, torch.where(is_zero, 1, value))
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
    if exponent > 1:
        # By lower powers, as x may be zero.
        lower = deferred(lambda: power(x, exponent - 1) * exponent)
        return integral(value, lower * x.derivative())
    return solution(value, lambda y: y / x * exponent, x)


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
