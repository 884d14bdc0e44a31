"""Rules of softmax, log_softmax, logsumexp, norms and variances, in closed form."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.laplacian import general
from torchlayers.transforms.laplacian.layer import ForwardLaplacian
from torchlayers.transforms.laplacian.rows import dense
from torchlayers.transforms.layers.layer_tensor import LayerTensor


def _positive(dims: Any, ndim: int) -> list[int]:
    """The dimensions counted from the front; all of them for None or an empty list."""
    if ndim == 0:
        return []
    chosen = [dims] if isinstance(dims, int) else list(dims or range(ndim))
    return [dim % ndim for dim in chosen]


def _centred(
    layer: ForwardLaplacian, x: LayerTensor, weights: Tensor, dims: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows' weighted means over dims, the centred rows, and the sum of their squares, plus the
    Laplacian."""
    rows = dense(x.parts.rows, x.value)
    means = _sum(weights * rows, [dim + 1 for dim in dims])
    centred = rows - means
    total = (centred * layer.weighted(centred)).sum(0)
    if x.parts.laplacian is not None:
        total = total + x.parts.laplacian
    return means, centred, total


def _sum(x: Tensor, dims: list[int]) -> Tensor:
    return x.sum(dims, keepdim=True) if dims else x


def softmax(layer: ForwardLaplacian, op: Any, x: LayerTensor, dim: int, *rest: Any) -> LayerTensor:
    """D2 of softmax along u, the centred direction: y (u^2 - mean of u^2)."""
    y = op(x.value, dim, *rest)
    dims = _positive(dim, y.dim())
    _, centred, total = _centred(layer, x, y, dims)
    return layer.result(y, y * centred, y * (total - _sum(y * total, dims)))


def log_softmax(
    layer: ForwardLaplacian, op: Any, x: LayerTensor, dim: int, *rest: Any
) -> LayerTensor:
    y = op(x.value, dim, *rest)
    dims, p = _positive(dim, y.dim()), y.exp()
    _, centred, total = _centred(layer, x, p, dims)
    laplacian = -_sum(p * total, dims).expand(y.shape)
    if x.parts.laplacian is not None:
        laplacian = laplacian + x.parts.laplacian
    return layer.result(y, centred, laplacian)


def logsumexp(
    layer: ForwardLaplacian, op: Any, x: LayerTensor, dim: Any, keepdim: bool = False
) -> LayerTensor:
    y = op(x.value, dim, keepdim)
    dims = _positive(dim, x.value.dim())
    p = torch.softmax(x.value, dims[0]) if len(dims) == 1 else _exp_of(op, x.value, dims)
    means, _, total = _centred(layer, x, p, dims)
    laplacian = _sum(p * total, dims)
    return layer.result(y, means.reshape(len(means), *y.shape), laplacian.reshape(y.shape))


def _exp_of(op: Any, x: Tensor, dims: list[int]) -> Tensor:
    return torch.exp(x - op(x, dims, True)) if dims else torch.ones_like(x)


def norm(
    layer: ForwardLaplacian,
    op: Any,
    x: LayerTensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    **options: Any,
) -> Any:
    """linalg_vector_norm: with order 2, y y' = x x', and so on; otherwise by forward mode."""
    dims = _positive(dim, x.value.dim())
    zeros = general.constant_zeros(x)
    if dims:
        zeros = zeros.all(dims, keepdim=True)
    y = op(x.value, ord, dim, keepdim)
    if ord != 2 or x.value.is_complex() or options.get("dtype") is not None or not dims:
        constants = zeros.expand(x.value.shape), zeros.reshape(y.shape)
        return general.second_order(layer, op, x, ord, dim, keepdim, constants=constants, **options)
    whole = y if keepdim else op(x.value, ord, dim, True)
    rows = dense(x.parts.rows, x.value)
    whole = torch.where(zeros, 1, whole)  # what is divided by it is zero
    unit = x.value / whole
    along = _sum(unit * rows, [axis + 1 for axis in dims])
    inside = layer.squares(rows, x.value.shape)
    if x.parts.laplacian is not None:
        inside = inside + x.value * x.parts.laplacian
    total = (_sum(inside, dims) - (along * layer.weighted(along)).sum(0)) / whole
    return layer.result(y, along.reshape(len(along), *y.shape), total.reshape(y.shape))


def slogdet(layer: ForwardLaplacian, op: Any, a: LayerTensor) -> Any:
    """_linalg_slogdet: with B[i] = A^-1 A[i], log|det A| has the rows tr B[i], and the Laplacian
    tr(A^-1 L) - the sum of tr(B[i] B[i])."""
    if a.value.is_complex():
        return general.second_order(layer, op, a)
    sign, value, lu, pivots = op(a.value)
    rows, laplacian = dense(a.parts.rows, a.value), a.parts.laplacian
    b = torch.linalg.solve(a.value, rows)
    total = -(b * layer.weighted(b).mT).sum((0, -2, -1))
    if laplacian is not None:
        total = total + _trace(torch.linalg.solve(a.value, laplacian))
    return sign, layer.result(value, _trace(b), total), lu, pivots


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def inverse(layer: ForwardLaplacian, op: Any, a: LayerTensor, **options: Any) -> Any:
    """linalg_inv_ex: Y' = -Y A' Y, and Y'' = -Y A'' Y + 2 Y A' Y A' Y."""
    y, info = op(a.value, **options)
    rows, laplacian = dense(a.parts.rows, a.value), a.parts.laplacian
    b = y @ rows
    total = 2 * (b @ layer.weighted(b)).sum(0)
    if laplacian is not None:
        total = total - y @ laplacian
    return layer.result(y, -(b @ y), total @ y), info
