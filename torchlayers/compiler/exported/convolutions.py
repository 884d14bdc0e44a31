"""Convolutions for programs that know no derivative of one, or no dynamic number of groups.

The gradients of a convolution are convolutions. Under vmap, each sample with its own weights is a
group; ONNX wants the number of groups as a constant, so where the batch is dynamic a convolution
is a product with patches of its input.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor

from torchlayers.core.operators import aten


class Window(NamedTuple):
    """How the kernel moves over the input, by dimension, and in how many groups."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    @staticmethod
    def for_dims(
        dims: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> "Window":
        stride, padding, dilation = (_per_dim(v, dims) for v in (stride, padding, dilation))
        return Window(stride, padding, dilation, groups)

    def sizes(self, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """The sizes of the result, of an input of these sizes."""
        steps = zip(sizes, kernel, *self[:3], strict=True)
        return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in steps]

    def transposed_sizes(self, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """The sizes of a transposed convolution's result, without output padding."""
        steps = zip(sizes, kernel, *self[:3], strict=True)
        return [(size - 1) * s - 2 * p + d * (k - 1) + 1 for size, k, s, p, d in steps]


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
    window = Window.for_dims(dims, stride, padding, dilation, groups)
    if transposed:
        result = _transposed_product(x, weight, window, _per_dim(output_padding, dims))
    else:
        result = _product(x, weight, window)
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
    window = Window.for_dims(dims, stride, padding, dilation, groups)
    in_grad = weight_grad = bias_grad = None
    if output_mask[0]:
        rest = [0] * dims
        if not transposed:  # what the strides leave over at the end of each dimension
            reached = window.transposed_sizes(grad.shape[2:], weight.shape[2:])
            rest = [x.shape[2 + i] - size for i, size in enumerate(reached)]
        in_grad = aten.convolution.default(
            grad, weight, None, *window[:3], not transposed, rest, groups
        )
    if output_mask[1]:
        one, other = (grad, x) if transposed else (x, grad)
        is_product = _needs_products(x, groups)
        gradient = _weight_gradient_product if is_product else _weight_gradient
        weight_grad = gradient(one, other, weight, window)
    if output_mask[2]:
        bias_grad = grad.sum([0, *range(2, grad.dim())])
    return in_grad, weight_grad, bias_grad


def _needs_products(x: Tensor, groups: int | SymInt) -> bool:
    """onnxruntime has convolutions of float32 alone, with a fixed number of groups."""
    return isinstance(groups, SymInt) or x.dtype is torch.float64


def _per_dim(values: Sequence[int], dims: int) -> list[int]:
    return [*values] * dims if len(values) == 1 else [*values]


def _weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, window: Window) -> Tensor:
    """The gradient by the weight of ``conv(x, weight)``: the convolution of x with grad.

    The channels take the place of the batch, and stride and dilation that of each other.
    """
    dims, batch, groups = x.dim() - 2, x.shape[0], window.groups
    inner = (
        x.reshape(batch, groups, -1, *x.shape[2:])
        .permute(2, 1, 0, *range(3, 3 + dims))
        .reshape(-1, groups * batch, *x.shape[2:])
    )
    outer = grad.transpose(0, 1)
    result: Tensor = aten.convolution.default(
        *(inner, outer, None, window.dilation, window.padding, window.stride),
        *(False, [0] * dims, groups),
    )
    for i, size in enumerate(weight.shape[2:]):  # a remainder of the stride adds elements
        result = result.narrow(2 + i, 0, size)
    return result.transpose(0, 1)


def _weight_gradient_product(x: Tensor, grad: Tensor, weight: Tensor, window: Window) -> Tensor:
    patches, groups = _patches(x, weight.shape[2:], window), window.groups
    of_groups = grad.reshape(grad.shape[0], groups, grad.shape[1] // groups, -1)
    return (of_groups @ patches.mT).sum(0).reshape(weight.shape)


def _patches(x: Tensor, kernel: Sequence[int], window: Window) -> Tensor:
    """What each element of a convolution reads: (batch, groups, channels * kernel, positions)."""
    pads = [p for pad in reversed(window.padding) for p in (pad, pad)]
    padded = aten.constant_pad_nd.default(x, pads)
    sizes = window.sizes(x.shape[2:], kernel)
    parts = []
    for offsets in itertools.product(*map(range, kernel)):
        part = padded
        for i, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            start = offset * window.dilation[i]
            end = start + (size - 1) * window.stride[i] + 1
            part = aten.slice.Tensor(part, 2 + i, start, end, window.stride[i])
        parts.append(part)
    channels = x.shape[1] // window.groups
    stacked = torch.stack(parts, 2)
    return stacked.reshape(x.shape[0], window.groups, channels * len(parts), -1)


def _product(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    kernel, groups = weight.shape[2:], window.groups
    products = weight.reshape(groups, weight.shape[0] // groups, -1) @ _patches(x, kernel, window)
    sizes = window.sizes(x.shape[2:], kernel)
    return products.reshape(x.shape[0], weight.shape[0], *sizes)


def _transposed_product(
    x: Tensor, weight: Tensor, window: Window, output_padding: Sequence[int]
) -> Tensor:
    groups, stride = window.groups, window.stride
    batch, dims, kernel = x.shape[0], x.dim() - 2, weight.shape[2:]
    of_groups = weight.reshape(groups, weight.shape[0] // groups, -1)
    columns = of_groups.mT @ x.reshape(batch, groups, x.shape[1] // groups, -1)
    channels = groups * weight.shape[1]
    columns = columns.reshape(batch, channels, -1, *x.shape[2:])
    whole = window._replace(padding=[0] * dims)
    sizes = whole.transposed_sizes(x.shape[2:], kernel)
    result: Tensor = x.new_zeros(())
    for i, offsets in enumerate(itertools.product(*map(range, kernel))):
        part = columns.select(2, i)
        ends: list[int] = []
        for dim in reversed(range(dims)):
            part = _with_gaps(part, 2 + dim, stride[dim])
            before = offsets[dim] * window.dilation[dim]
            reached = (x.shape[2 + dim] - 1) * stride[dim] + 1
            ends += [before, sizes[dim] - reached - before + output_padding[dim]]
        result = result + aten.constant_pad_nd.default(part, ends)
    for dim, pad in enumerate(window.padding):
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
