"""Activation functions with kinks, whose pieces are polynomials or exponential functions."""

from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.functions import exp, where
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import Series


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
