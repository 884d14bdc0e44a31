"""Activation functions of neural networks, and their backward operators."""

import math
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.jet.functions import exp, sigmoid, tanh, where
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import Series, integral

aten: Any = torch.ops.aten


@rule(aten.relu)
def relu(value: Tensor, x: Series) -> Series:
    return where(value > 0, x)


@rule(aten.threshold_backward)
def threshold_backward(value: Tensor, g: Series, x: Series, threshold: float) -> Series:
    return where(x[0] > threshold, g)


@rule(aten.silu)
def silu(value: Tensor, x: Series) -> Series:
    return x * sigmoid(x)


@rule(aten.gelu)
def gelu(value: Tensor, x: Series, *, approximate: str = "none") -> Series:
    if approximate == "tanh":
        cube = x * x.square()
        return x * (tanh((x + cube * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5
    density = exp(x.square() * -0.5) / math.sqrt(2 * math.pi)
    return x * integral(torch.special.ndtr(x[0]), density * x.derivative())


@rule(aten.mish)
def mish(value: Tensor, x: Series) -> Series:
    return x * tanh(integral(torch.nn.functional.softplus(x[0]), sigmoid(x) * x.derivative()))


@rule(aten.softplus)
def softplus(value: Tensor, x: Series, beta: float = 1, threshold: float = 20) -> Series:
    y = integral(value, sigmoid(x * beta) * x.derivative())
    return where(x[0] * beta > threshold, x, y)


@rule(aten.log_sigmoid_forward)
def log_sigmoid(value: tuple[Tensor, ...], x: Series) -> tuple[Series | None, ...]:
    return integral(value[0], sigmoid(-x) * x.derivative()), None


@rule(aten.elu)
def elu(
    value: Tensor, x: Series, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Series:
    low = exp(x * input_scale) * (alpha * scale)
    return where(x[0] > 0, x * scale, low)


@rule(aten.hardswish)
def hardswish(value: Tensor, x: Series) -> Series:
    slope = where((x[0] > -3) & (x[0] < 3), x / 6)
    return x * Series(lambda k: slope[k], torch.nn.functional.hardsigmoid(x[0]))


@rule(aten._prelu_kernel)
def prelu(value: Tensor, x: Series, weight: Series) -> Series:
    return where(x[0] > 0, x, x * weight)


@rule(aten.glu)
def glu(value: Tensor, x: Series, dim: int = -1) -> Series:
    half = x[0].size(dim) // 2
    return x.map(lambda c: c.narrow(dim, 0, half)) * sigmoid(
        x.map(lambda c: c.narrow(dim, half, half))
    )


@rule(aten.sigmoid_backward)
def sigmoid_backward(value: Tensor, g: Series, y: Series) -> Series:
    return g * (y - y.square()) if not y[0].is_complex() else NotImplemented


@rule(aten.tanh_backward)
def tanh_backward(value: Tensor, g: Series, y: Series) -> Series:
    return g * (1 - y.square()) if not y[0].is_complex() else NotImplemented
