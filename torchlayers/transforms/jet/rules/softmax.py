"""Softmax and what belongs to it, by y' = y (x' - sum(y x'))."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import Series, integral, recursive


@rule(aten._softmax, aten._safe_softmax)
def softmax(value: Tensor, x: Series, dim: Any, *_: Any, **__: Any) -> Series:
    dx = x.derivative()
    return recursive(value, lambda y: integral(value, y * (dx - _total(y * dx, dim))))


@rule(aten._log_softmax)
def log_softmax(value: Tensor, x: Series, dim: int, half_to_float: bool) -> Series:
    share = softmax(value.exp(), x, dim)
    dx = x.derivative()
    return integral(value, dx - _total(share * dx, dim))


@rule(aten.logsumexp)
def logsumexp(value: Tensor, x: Series, dim: Any, keepdim: bool = False) -> Series:
    dims = tuple(dim) or tuple(range(x[0].dim()))
    size = torch.logsumexp(x[0], dims, keepdim=True)
    # Where all elements are infinite, none has a share.
    share = softmax(torch.exp(x[0] - torch.where(size.isinf(), 0, size)), x, dims)
    return integral(value, _total(share * x.derivative(), dims, keepdim))


@rule(aten._softmax_backward_data)
def softmax_backward(value: Tensor, g: Series, y: Series, dim: int, dtype: Any) -> Series:
    return y * (g - _total(g * y, dim))


@rule(aten._log_softmax_backward_data)
def log_softmax_backward(value: Tensor, g: Series, y: Series, dim: int, dtype: Any) -> Series:
    dy = y.derivative()
    first = y[0].exp()
    share = recursive(first, lambda share: integral(first, share * dy))
    return g - share * _total(g, dim)


def _total(x: Series, dim: Any, keepdim: bool = True) -> Series:
    return x.map(lambda c: c.sum(dim, keepdim=keepdim))
