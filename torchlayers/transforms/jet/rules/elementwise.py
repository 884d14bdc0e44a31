"""Elementwise functions of one argument, and of two."""

import math
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.jet import functions
from torchlayers.transforms.jet.functions import absolute, exp, log, power, root, sigmoid, solution
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import (
    Series,
    as_series,
    composed,
    constant,
    integral,
)

aten: Any = torch.ops.aten


def _elementary(name: str) -> None:
    @rule(getattr(aten, name).default)
    def elementary(value: Tensor, x: Series) -> Series:
        return functions.function(name, x, value)


for _name in functions.DERIVATIVES:
    _elementary(_name)


@rule(aten.abs)
def abs(value: Tensor, x: Series) -> Series:
    return absolute(x, value)


@rule(aten.sgn)
def sgn(value: Tensor, x: Series) -> Series | None:
    if not value.is_complex():
        return None
    size = absolute(x)
    y = x / Series(lambda k: size[k], torch.where(size[0] == 0, 1, size[0]))
    return Series(lambda k: y[k], value)


@rule(aten.angle)
def angle(value: Tensor, x: Series) -> Series | None:
    return argument(value, x.map(torch.imag), x.map(torch.real)) if x[0].is_complex() else None


@rule(aten.atan2)
def argument(value: Tensor, y: Series, x: Series) -> Series:
    turning = x * y.derivative() - y * x.derivative()
    return integral(value, turning / (x.square() + y.square()))


@rule(aten.polar)
def polar(value: Tensor, size: Series, turned: Series) -> Series:
    unit = exp(turned * 1j, torch.polar(torch.ones_like(turned[0]), turned[0]))
    return size * unit


@rule(aten.hypot)
def hypot(value: Tensor, x: Series, y: Series) -> Series:
    return root(x.square() + y.square(), value)


@rule(aten.digamma)
def digamma(value: Tensor, x: Series) -> Series:
    return composed(lambda n: torch.polygamma(n, x[0]), x)


@rule(aten.polygamma)
def polygamma(value: Tensor, n: int, x: Series) -> Series:
    return composed(lambda k: torch.polygamma(n + k, x[0]), x)


@rule(aten.lgamma)
def lgamma(value: Tensor, x: Series) -> Series:
    return composed(lambda n: torch.polygamma(n - 1, x[0]) if n else value, x)


@rule(aten.logit)
def logit(value: Tensor, x: Series, eps: float | None = None) -> Series:
    y = integral(value, x.derivative() / (x - x.square()))
    if eps is None:
        return y
    is_inside = (x[0] >= eps) & (x[0] <= 1 - eps)
    return y.map(lambda c: torch.where(is_inside, c, 0))


@rule(aten.pow.Tensor_Scalar)
def pow_of_number(value: Tensor, x: Series, exponent: Any) -> Series:
    return power(x, exponent, value)


@rule(aten.pow.Scalar)
def pow_of_constant(value: Tensor, base: Any, exponent: Series) -> Series:
    if base == 0:
        return constant(value)
    factor = torch.log(torch.as_tensor(base, dtype=value.dtype)).item()
    return solution(value, lambda y: y * factor, exponent)


@rule(aten.pow.Tensor_Tensor)
def pow_of_tensor(value: Tensor, x: Any, exponent: Any) -> Series:
    x, exponent = as_series(x), as_series(exponent)
    if not isinstance(exponent[0], Tensor):
        return power(x, exponent[0], value)
    if exponent.is_constant:
        return composed(lambda n: _falling_power(x[0], exponent[0], n), x)
    if x.is_constant:
        base = torch.as_tensor(x[0], dtype=value.dtype)
        factor = torch.log(torch.where(base == 0, 1, base))  # zero to any power has no derivative
        return solution(value, lambda y: y * factor, exponent)
    return exp(exponent * log(x), value)


def _falling_power(x: Tensor, exponent: Tensor, n: int) -> Tensor:
    """The n-th derivative of x ** exponent: zero where a factor is, also for x = 0."""
    factor = torch.ones_like(exponent)
    for i in range(n):
        factor = factor * (exponent - i)
    return torch.where(factor == 0, 0, factor * torch.pow(x, exponent - n))


@rule(aten.logaddexp)
def logaddexp(value: Tensor, x: Series, y: Series) -> Series:
    share = sigmoid(x - y)
    return integral(value, y.derivative() + share * (x - y).derivative())


@rule(aten.logaddexp2)
def logaddexp2(value: Tensor, x: Series, y: Series) -> Series:
    share = sigmoid((x - y) * math.log(2))
    return integral(value, y.derivative() + share * (x - y).derivative())
