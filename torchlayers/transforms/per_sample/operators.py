"""Readers: for each operator, a function that describes how it uses a weight.

A reader has the operator's signature. It returns None for a call that has no such description.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchlayers.transforms.per_sample.convolution import Convolution
from torchlayers.transforms.per_sample.uses import Linear, Lookup, Use


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Use | None:
    return Linear(weight, input, is_transposed=True) if weight.dim() == 2 else None


def _matmul(input: Tensor, other: Tensor, *, out: Any = None) -> Use | None:
    return Linear(other, input, is_transposed=False) if other.dim() == 2 else None


def _mm(input: Tensor, mat2: Tensor, *, out: Any = None) -> Use | None:
    return _matmul(input, mat2)


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Use | None:
    return _matmul(mat1, mat2) if alpha == 1 else None


def _conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Use | None:
    return Convolution(weight, input, stride, padding, dilation, groups)


def _conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Use | None:
    return Convolution(
        weight, input, stride, padding, dilation, groups, output_padding, is_transposed=True
    )


def _embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Use | None:
    return Lookup(weight, indices, padding_idx, scale_grad_by_freq)


HANDLERS: dict[Any, Callable[..., Use | None]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    torch.mm: _mm,
    Tensor.mm: _mm,
    torch.addmm: _addmm,
    F.conv1d: _conv,
    F.conv2d: _conv,
    F.conv3d: _conv,
    F.conv_transpose1d: _conv_transpose,
    F.conv_transpose2d: _conv_transpose,
    F.conv_transpose3d: _conv_transpose,
    torch.embedding: _embedding,
}
