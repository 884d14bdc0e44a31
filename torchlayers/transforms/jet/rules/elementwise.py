"""Elementwise functions of one argument, and of two."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet import coefficients, functions
from torchlayers.transforms.jet.functions import (
    absolute,
    exp,
    power,
    root,
    solution,
    where,
)
from torchlayers.transforms.jet.layer import Jet, known, rule
from torchlayers.transforms.jet.series import (
    Series,
    as_series,
    composed,
    in_dtype,
    integral,
)
from torchlayers.transforms.layers.layer_tensor import LayerTensor


def _logarithm(name: str) -> None:
    @Jet.rule(getattr(aten, name).default)
    def logarithm(layer: Jet, op: Any, x: LayerTensor) -> Tensor:
        coefficients_of_log = coefficients.logarithm(
            op(x.value), known(x), *functions.LOGARITHMS[name]
        )
        return layer.joined(coefficients_of_log)


for _name in functions.LOGARITHMS:
    _logarithm(_name)


@Jet.rule(aten.sqrt.default)
def sqrt(layer: Jet, op: Any, x: LayerTensor) -> Tensor:
    return layer.joined(coefficients.square_root(op(x.value), known(x)))


def _pair(sine: str, cosine: str, sign: float) -> None:
    @Jet.rule(getattr(aten, sine).default, getattr(aten, cosine).default)
    def pair(layer: Jet, op: Any, x: LayerTensor) -> Tensor:
        first = getattr(torch, sine)(x.value), getattr(torch, cosine)(x.value)
        sine_cosine = coefficients.sine_and_cosine(*first, sign, known(x))
        return layer.joined(sine_cosine[0 if op.overloadpacket == getattr(aten, sine) else 1])


_pair("sin", "cos", -1)
_pair("sinh", "cosh", 1)


@rule(aten.rsqrt)
def rsqrt(value: Tensor, x: Series) -> Series:
    return functions.rsqrt(x, value)


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
    x, y = in_dtype(x, value.dtype), in_dtype(y, value.dtype)
    turning = x * y.derivative() - y * x.derivative()
    angle = integral(value, turning / (x.square() + y.square()))
    return where((x[0] != 0) | (y[0] != 0), angle)  # the origin has no derivative: zero, as in jvp


@rule(aten.polar)
def polar(value: Tensor, size: Series, turned: Series) -> Series:
    unit = exp(turned * 1j, torch.polar(torch.ones_like(turned[0]), turned[0]))
    return size * unit


@rule(aten.hypot)
def hypot(value: Tensor, x: Series, y: Series) -> Series:
    return root(x.square() + y.square(), value)


@rule(aten.pow.Tensor_Scalar)
def pow_of_number(value: Tensor, x: Series, exponent: Any) -> Series:
    return power(x, exponent, value)


@rule(aten.pow.Scalar)
def pow_of_constant(value: Tensor, base: Any, exponent: Series) -> Series:
    return _exponential(value, torch.as_tensor(base, dtype=value.dtype), exponent)


def _exponential(value: Tensor, base: Tensor, exponent: Series) -> Series:
    """Constants to a power; zero has no derivative but where it is infinite."""
    factor = torch.log(base)
    y = solution(value, lambda y: y * factor, exponent)
    return where((base != 0) | ~(exponent[0].real >= 0), y)


@rule(aten.pow.Tensor_Tensor)
def pow_of_tensor(value: Tensor, x: Any, exponent: Any) -> Any:
    x, exponent = as_series(x), as_series(exponent)
    if not isinstance(exponent[0], Tensor):
        return power(x, exponent[0], value)
    if exponent.is_constant:
        degree = exponent[0].to(value.dtype)
        return composed(lambda n: _falling_power(x[0], degree, n), x)
    if x.is_constant:
        return _exponential(value, torch.as_tensor(x[0], dtype=value.dtype), exponent)
    return NotImplemented  # exp(exponent * log(x)) is nan where x is zero


def _falling_power(x: Tensor, exponent: Tensor, n: int) -> Tensor:
    """The n-th derivative of x ** exponent: zero where a factor is, also for x = 0."""
    factor = torch.ones_like(exponent)
    for i in range(n):
        factor = factor * (exponent - i)
    return torch.where(factor == 0, 0, factor * torch.pow(x, exponent - n))
