"""Activation functions of neural networks, and their backward operators."""

import math
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet import coefficients
from torchlayers.transforms.jet.functions import exp, function, where
from torchlayers.transforms.jet.layer import Jet, known, rule
from torchlayers.transforms.jet.series import Series, integral
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.slopes import slope_of


@Jet.rule(aten.relu)
def relu(layer: Jet, op: Any, x: LayerTensor) -> Any:
    value = op(x.value)
    is_off = value <= 0  # not of a nan, whose derivative is 1
    return layer.joined(
        [value, *(None if c is None else c.masked_fill(is_off, 0) for c in x.parts)]
    )


@Jet.rule(aten.silu)
def silu(layer: Jet, op: Any, x: LayerTensor) -> Any:
    share = torch.sigmoid(x.value)
    shares = coefficients.quadratic(share, slope_of(aten.sigmoid.default), known(x))
    return layer.joined(coefficients.product(known(x), shares, op(x.value)))


@rule(aten.gelu)
def gelu(value: Tensor, x: Series, *, approximate: str = "none") -> Series:
    if approximate == "tanh":
        cube = x * x.square()
        return x * (function("tanh", (x + cube * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5
    density = exp(x.square() * -0.5) / math.sqrt(2 * math.pi)
    return x * integral(torch.special.ndtr(x[0]), density * x.derivative())


@rule(aten.softplus)
def softplus(value: Tensor, x: Series, beta: float = 1, threshold: float = 20) -> Series:
    y = integral(value, function("sigmoid", x * beta) * x.derivative())
    return where(x[0] * beta > threshold, x, y)


@rule(aten.elu)
def elu(
    value: Tensor, x: Series, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Series:
    """At zero it has the slope of the left side and, as in jvp, no curvature."""
    low = exp(x * input_scale) * (alpha * scale)
    at_zero = x * (alpha * scale * input_scale)
    return where(x[0] < 0, low, where(x[0] == 0, at_zero, x * scale))


@rule(aten.hardswish)
def hardswish(value: Tensor, x: Series) -> Series:
    is_between = (x[0] > -3) & (x[0] < 3)
    return where(is_between, x * (x + 3) / 6, where(~(x[0] <= -3), x))


@rule(aten._prelu_kernel)
def prelu(value: Tensor, x: Series, weight: Series) -> Series:
    return where(x[0] > 0, x, x * weight)


@rule(aten.glu)
def glu(value: Tensor, x: Series, dim: int = -1) -> Series:
    half = x[0].size(dim) // 2
    return x.map(lambda c: c.narrow(dim, 0, half)) * function(
        "sigmoid", x.map(lambda c: c.narrow(dim, half, half))
    )


@rule(aten.sigmoid_backward)
def sigmoid_backward(value: Tensor, g: Series, y: Series) -> Series:
    return g * (y - y.square()) if not y[0].is_complex() else NotImplemented


@rule(aten.tanh_backward)
def tanh_backward(value: Tensor, g: Series, y: Series) -> Series:
    return g * (1 - y.square()) if not y[0].is_complex() else NotImplemented
