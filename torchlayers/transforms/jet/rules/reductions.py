"""Variances, norms, and products of elements."""

import math
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.functions import absolute, power, root
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.rules.piecewise import piecewise_linear
from torchlayers.transforms.jet.series import Series, constant, in_dtype


@rule(aten.var.correction)
def var(
    value: Tensor, x: Series, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Series:
    return _variance(x, dim, correction, keepdim)


@rule(aten.std.correction)
def std(
    value: Tensor, x: Series, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Series:
    return root(_variance(x, dim, correction, keepdim), value)


@rule(aten.var_mean.correction)
def var_mean(
    value: Any, x: Series, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Series, Series]:
    return _variance(x, dim, correction, keepdim), _mean(x, dim, keepdim)


@rule(aten.std_mean.correction)
def std_mean(
    value: Any, x: Series, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Series, Series]:
    deviation = root(_variance(x, dim, correction, keepdim), value[0])
    return deviation, _mean(x, dim, keepdim)


def _mean(x: Series, dim: Any, keepdim: bool) -> Series:
    dims = _all_dims(x[0], dim)
    return x.map(lambda c: c.mean(dims, keepdim=keepdim) if dims else c)


def _variance(x: Series, dim: Any, correction: Any, keepdim: bool) -> Series:
    dims = _all_dims(x[0], dim)
    count = math.prod(x[0].size(d) for d in dims)
    squares = _squared_sizes(x - _mean(x, dims, True))
    total = squares.map(lambda c: c.sum(dims, keepdim=keepdim) if dims else c)
    return total / max(count - (1 if correction is None else correction), 0) if count else total


def _squared_sizes(x: Series) -> Series:
    if not x[0].is_complex():
        return x.square()
    return x.map(torch.real).square() + x.map(torch.imag).square()


def _all_dims(x: Tensor, dim: Any) -> tuple[int, ...]:
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(dims or range(x.dim())) if x.dim() else ()


@rule(aten.linalg_vector_norm)
def vector_norm(
    value: Tensor,
    x: Series,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Series:
    x = x if dtype is None else x.map(lambda c: c.to(dtype))
    dims = _all_dims(x[0], dim)

    def total(x: Series) -> Series:
        return x.map(lambda c: c.sum(dims, keepdim=keepdim) if dims else c)

    if ord == 2:
        return root(total(_squared_sizes(x)), value)
    sizes = absolute(x)
    if ord == 0:
        return constant(value)
    if abs(ord) == math.inf:
        extreme = torch.amax if ord > 0 else torch.amin
        return piecewise_linear(lambda c: extreme(c, dims, keepdim), sizes)
    if ord == 1:
        return total(sizes)
    y = power(total(power(sizes, ord)), 1 / ord, value)
    return Series(lambda k: None if y[k] is None else torch.where(value == 0, 0, y[k]), value)


@rule(aten.norm.Scalar)
def norm(value: Tensor, x: Series, p: Any = 2) -> Series:
    return vector_norm(value, x, p)


@rule(aten.norm.ScalarOpt_dim)
def norm_dim(value: Tensor, x: Series, p: Any, dim: Any, keepdim: bool = False) -> Series:
    return vector_norm(value, x, 2 if p is None else p, dim, keepdim)


@rule(aten.dist)
def dist(value: Tensor, x: Series, y: Series, p: Any = 2) -> Series:
    dtype = torch.result_type(x[0], y[0])
    return vector_norm(value, in_dtype(x, dtype) - in_dtype(y, dtype), p)


@rule(aten._cdist_forward)
def cdist(value: Tensor, x: Series, y: Series, p: float, mode: int | None) -> Series:
    rows, others = x.map(lambda c: c.unsqueeze(-2)), y.map(lambda c: c.unsqueeze(-3))
    return vector_norm(value, rows - others, p, -1)


@rule(aten.prod.default)
def prod(value: Tensor, x: Series, *, dtype: Any = None) -> Series:
    x = x if dtype is None else x.map(lambda c: c.to(dtype))
    return _product(x.map(lambda c: c.reshape(-1)), 0, False, value)


@rule(aten.prod.dim_int)
def prod_dim(
    value: Tensor, x: Series, dim: int, keepdim: bool = False, *, dtype: Any = None
) -> Series:
    x = x if dtype is None else x.map(lambda c: c.to(dtype))
    if x[0].dim() == 0:
        return x
    return _product(x, dim, keepdim, value)


def _product(x: Series, dim: int, keepdim: bool, value: Tensor) -> Series:
    """Multiplies one half with the other, until one element is left."""
    size = x[0].size(dim)
    if size == 0:
        return constant(value)
    while size > 1:
        half = size // 2
        multiplied = _part(x, dim, 0, half) * _part(x, dim, half, half)
        x = _joined(multiplied, _part(x, dim, 2 * half, 1), dim) if size % 2 else multiplied
        size = half + size % 2
    return x if keepdim else x.map(lambda c: c.squeeze(dim))


@rule(aten.cumprod)
def cumprod(value: Tensor, x: Series, dim: int, *, dtype: Any = None) -> Series:
    x = x if dtype is None else x.map(lambda c: c.to(dtype))
    if x[0].dim() == 0:
        return x
    size, step = x[0].size(dim), 1
    while step < size:  # each element has the product of `step` elements up to it
        multiplied = _part(x, dim, step, size - step) * _part(x, dim, 0, size - step)
        x = _joined(_part(x, dim, 0, step), multiplied, dim)
        step *= 2
    return x


def _part(x: Series, dim: int, start: int, size: int) -> Series:
    return x.map(lambda c: c.narrow(dim, start, size))


def _joined(x: Series, y: Series, dim: int) -> Series:
    def compute(k: int) -> Any:
        if x[k] is None and y[k] is None:
            return None
        parts = [torch.zeros_like(z[0]) if z[k] is None else z[k] for z in (x, y)]
        return torch.cat(parts, dim)

    return Series(compute)
