"""Convolutions for programs that know no derivative of one, or no dynamic number of groups.

The gradients of a convolution are convolutions. Under vmap, each sample with its own weights is a
group; ONNX wants the number of groups as a constant, so where the batch is dynamic a convolution
is a product with patches of its input.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import SymInt, Tensor

from torchlayers.core.operators import aten


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """aten.convolution of a dynamic number of groups, or of float64, as products."""
    if not _needs_products(x, groups):
        return NotImplemented
    dims = x.dim() - 2
    stride, padding, dilation = (_per_dim(v, dims) for v in (stride, padding, dilation))
    if transposed:
        rest = _per_dim(output_padding, dims)
        result = _transposed_product(x, weight, stride, padding, dilation, rest, groups)
    else:
        result = _product(x, weight, stride, padding, dilation, groups)
    return result if bias is None else result + bias.reshape(-1, *[1] * dims)


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """aten.convolution_backward as convolutions."""
    dims = x.dim() - 2
    stride, padding, dilation = (_per_dim(v, dims) for v in (stride, padding, dilation))
    in_grad = weight_grad = bias_grad = None
    if output_mask[0]:
        rest = [0] * dims
        if not transposed:  # what the strides leave over at the end of each dimension
            reached = _transposed_sizes(grad, weight, stride, padding, dilation)
            rest = [x.shape[2 + i] - size for i, size in enumerate(reached)]
        in_grad = aten.convolution.default(
            grad, weight, None, stride, padding, dilation, not transposed, rest, groups
        )
    if output_mask[1]:
        one, other = (grad, x) if transposed else (x, grad)
        is_product = _needs_products(x, groups)
        gradient = _weight_gradient_product if is_product else _weight_gradient
        weight_grad = gradient(one, other, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        bias_grad = grad.sum([0, *range(2, grad.dim())])
    return in_grad, weight_grad, bias_grad


def _needs_products(x: Tensor, groups: int | SymInt) -> bool:
    """onnxruntime has convolutions of float32 alone, with a fixed number of groups."""
    return isinstance(groups, SymInt) or x.dtype is torch.float64


def _per_dim(values: Sequence[int], dims: int) -> list[int]:
    return [*values] * dims if len(values) == 1 else [*values]


def _transposed_sizes(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The sizes of a transposed convolution's result, without output padding."""
    steps = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return [(size - 1) * s - 2 * p + d * (kernel - 1) + 1 for size, kernel, s, p, d in steps]


def _weight_gradient(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The gradient by the weight of ``conv(x, weight)``: the convolution of x with grad.

    The channels take the place of the batch, and stride and dilation that of each other.
    """
    dims, batch = x.dim() - 2, x.shape[0]
    inner = (
        x.reshape(batch, groups, -1, *x.shape[2:])
        .permute(2, 1, 0, *range(3, 3 + dims))
        .reshape(-1, groups * batch, *x.shape[2:])
    )
    outer = grad.transpose(0, 1)
    result: Tensor = aten.convolution.default(
        inner, outer, None, dilation, padding, stride, False, [0] * dims, groups
    )
    for i, size in enumerate(weight.shape[2:]):  # a remainder of the stride adds elements
        result = result.narrow(2 + i, 0, size)
    return result.transpose(0, 1)


def _weight_gradient_product(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    patches = _patches(x, weight.shape[2:], stride, padding, dilation, groups)
    of_groups = grad.reshape(grad.shape[0], groups, grad.shape[1] // groups, -1)
    return (of_groups @ patches.mT).sum(0).reshape(weight.shape)


def _patches(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """What each element of a convolution reads: (batch, groups, channels * kernel, positions)."""
    padded = aten.constant_pad_nd.default(x, [p for pad in reversed(padding) for p in (pad, pad)])
    sizes = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(padded.shape[2:], kernel, stride, dilation, strict=True)
    ]
    parts = []
    for offsets in itertools.product(*map(range, kernel)):
        part = padded
        for i, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            start = offset * dilation[i]
            end = start + (size - 1) * stride[i] + 1
            part = aten.slice.Tensor(part, 2 + i, start, end, stride[i])
        parts.append(part)
    channels = x.shape[1] // groups
    stacked = torch.stack(parts, 2)
    return stacked.reshape(x.shape[0], groups, channels * len(parts), -1)


def _product(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    patches = _patches(x, weight.shape[2:], stride, padding, dilation, groups)
    products = weight.reshape(groups, weight.shape[0] // groups, -1) @ patches
    sizes = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(
            *(x.shape[2:], weight.shape[2:], stride, padding, dilation), strict=True
        )
    ]
    return products.reshape(x.shape[0], weight.shape[0], *sizes)


def _transposed_product(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    batch, dims, kernel = x.shape[0], x.dim() - 2, weight.shape[2:]
    of_groups = weight.reshape(groups, weight.shape[0] // groups, -1)
    columns = of_groups.mT @ x.reshape(batch, groups, x.shape[1] // groups, -1)
    channels = groups * weight.shape[1]
    columns = columns.reshape(batch, channels, -1, *x.shape[2:])
    sizes = _transposed_sizes(x, weight, stride, [0] * dims, dilation)
    result: Tensor = x.new_zeros(())
    for i, offsets in enumerate(itertools.product(*map(range, kernel))):
        part = columns.select(2, i)
        ends: list[int] = []
        for dim in reversed(range(dims)):
            part = _with_gaps(part, 2 + dim, stride[dim])
            before = offsets[dim] * dilation[dim]
            reached = (x.shape[2 + dim] - 1) * stride[dim] + 1
            ends += [before, sizes[dim] - reached - before + output_padding[dim]]
        result = result + aten.constant_pad_nd.default(part, ends)
    for dim, pad in enumerate(padding):
        size = sizes[dim] + output_padding[dim] - 2 * pad
        result = result.narrow(2 + dim, pad, size)
    return result


def _with_gaps(x: Tensor, dim: int, stride: int) -> Tensor:
    """Puts ``stride - 1`` zeros between neighbours."""
    if stride == 1:
        return x
    spread = x.unsqueeze(dim + 1)
    behind = x.dim() - dim - 1
    spread = aten.constant_pad_nd.default(spread, [0, 0] * behind + [0, stride - 1])
    size = (x.shape[dim] - 1) * stride + 1
    gaps: Tensor = spread.flatten(dim, dim + 1).narrow(dim, 0, size)
    return gaps
