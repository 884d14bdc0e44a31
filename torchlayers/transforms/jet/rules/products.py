"""Products and quotients: convolutions of their operands' series."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import Series, bilinear


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_rounded(value: Tensor, x: Series, y: Any, *, rounding_mode: Any = None) -> Any:
    return None if rounding_mode is not None else x / y


@rule(aten.addcmul)
def addcmul(result: Tensor, /, x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + y * z * value


@rule(aten.lerp)
def lerp(value: Tensor, x: Any, y: Any, weight: Any) -> Any:
    return x + (y - x) * weight


@rule(aten.convolution)
def convolution(value: Tensor, x: Series, weight: Series, bias: Series | None, *how: Any) -> Series:
    product = bilinear(lambda x, weight: aten.convolution(x, weight, None, *how), x, weight)
    if bias is None:
        return product
    return product + bias.map(lambda c: c.view(-1, *[1] * (weight[0].dim() - 2)))


@rule(aten.convolution_backward)
def convolution_backward(
    value: tuple[Tensor, ...],
    g: Series,
    x: Series,
    weight: Series,
    bias_sizes: Any,
    *how: Any,
) -> tuple[Series | None, ...]:
    *how_, mask = how

    def only(i: int, g: Tensor, x: Tensor, weight: Tensor) -> Any:
        masks = [i == j for j in range(3)]
        return aten.convolution_backward(g, x, weight, bias_sizes, *how_, masks)[i]

    gradients: tuple[Callable[[], Series], ...] = (
        lambda: bilinear(lambda g, weight: only(0, g, x[0], weight), g, weight),
        lambda: bilinear(lambda g, x: only(1, g, x, weight[0]), g, x),
        lambda: g.map(lambda g: only(2, g, x[0], weight[0])),  # without a bias, it has no sizes
    )
    return tuple(by() if wanted else None for by, wanted in zip(gradients, mask, strict=True))
