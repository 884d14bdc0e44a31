"""Batch, layer and group normalization."""

from typing import Any

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.functions import rsqrt
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import Series


@rule(aten.native_layer_norm)
def layer_norm(
    value: Any, x: Series, shape: Any, weight: Series | None, bias: Series | None, eps: float
) -> tuple[Series | None, ...]:
    dims = tuple(range(x[0].dim() - len(shape), x[0].dim()))
    y, mean, scale = _normalized(x, dims, eps)
    return _scaled(y, weight, bias), mean, scale


@rule(aten.native_group_norm)
def group_norm(
    value: Any,
    x: Series,
    weight: Series | None,
    bias: Series | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Series | None, ...]:
    rows = x.map(lambda c: c.reshape(batch, groups, -1))
    y, *statistics = _normalized(rows, (2,), eps)
    y = y.map(lambda c: c.view(x[0].shape))
    y = _scaled(y, _per_channel(weight, x), _per_channel(bias, x))
    return y, *(statistic.map(lambda c: c.squeeze(2)) for statistic in statistics)


@rule(
    aten._batch_norm_with_update_functional,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten.native_batch_norm,
)
def batch_norm(
    value: Any, x: Series, weight: Series | None, bias: Series | None, *how: Any
) -> tuple[Series | None, ...]:
    *statistics, _, eps = how  # running mean, running variance, training; or training alone
    is_training = statistics.pop() if isinstance(statistics[-1], bool) else True
    used: list[Series | None]
    if is_training:
        dims = (0, *range(2, x[0].dim()))
        y, *per_channel = _normalized(x, dims, eps)
        used = [parameter.map(lambda c: c.flatten()) for parameter in per_channel]
    else:
        mean, variance = (_per_channel(parameter, x) for parameter in statistics)
        y, used = (x - mean) * rsqrt(variance + eps), [None, None]
    y = _scaled(y, _per_channel(weight, x), _per_channel(bias, x))
    return y, *used, *[None] * (len(value) - 3)  # the rest are buffers, which have no derivatives


def _normalized(x: Series, dims: tuple[int, ...], eps: float) -> tuple[Series, Series, Series]:
    """The normalized series, its mean, and one divided by its standard deviation."""
    mean = x.map(lambda c: c.mean(dims, keepdim=True))
    centered = x - mean
    variance = centered.square().map(lambda c: c.mean(dims, keepdim=True))
    scale = rsqrt(variance + eps)
    return centered * scale, mean, scale


def _scaled(x: Series, weight: Series | None, bias: Series | None) -> Series:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _per_channel(parameter: Any, x: Series) -> Any:
    """Gives the channels of a parameter the place that they have in x."""
    if parameter is None:
        return None
    return parameter.map(lambda c: c.view(-1, *[1] * (x[0].dim() - 2)))
