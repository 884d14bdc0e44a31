"""Rewrites convolutions as matrix products with the windows that the kernel sees (im2col).

Where that is faster: a library's convolution spends time on choosing a kernel and laying out its
arguments, and is slow for groups of few channels, such as the per-sample gradients of a first
layer. The windows are gathered once for all their readers: a layer's output, and its weight's
gradient, for each sample or for all together.
"""

import math
import operator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from torchlayers.core.device import is_on_host
from torchlayers.core.operators import aten
from torchlayers.fx.nodes import (
    calls,
    emit,
    is_tensor,
    replace,
    value,
)

# The results of a convolution's backward, by their places, and the convolution itself.
OF_IMAGE, OF_WEIGHT, OF_BIAS, FORWARD = 0, 1, 2, 3
# With fewer input channels, the library has only slow kernels for images' gradients, and for groups
# unless the channels are innermost.
_FEW_CHANNELS = 8
# A larger tensor gets fresh memory in each call: malloc returns it to the system.
_MOST_REUSED = 32.0


class SlidingWindows(NamedTuple):
    """The way a kernel slides over an image."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    def places(self, image: list[int]) -> list[int]:
        return [
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, pad, dilation in zip(image, *self, strict=True)
        ]


def expand_convolutions(graph: GraphModule) -> None:
    """The same sums, added in another order."""
    outermost = keeps_channels_outermost(graph)
    for node in graph.graph.nodes:
        if calls(node, aten.convolution.default) and _is_plain(node, node.args[0], *node.args[3:8]):
            _forward(node, outermost, *node.args)
        elif calls(node, aten.convolution_backward.default) and _is_plain(
            node, node.args[0], *node.args[4:9]
        ):
            _backward(node, outermost, *node.args)


def keeps_channels_outermost(graph: GraphModule) -> bool:
    """Whether images are to stay in torch's layout: on the CPU, with group norms.

    Inductor would lay out images between convolutions with the channels innermost. A group norm's
    loops would then run over the few channels of a group, a vector for each place.
    """
    return any(
        calls(node, aten.native_group_norm.default, aten.native_group_norm_backward.default)
        and is_on_host(value(node.args[0]))
        for node in graph.graph.nodes
    )


def products_are_faster(
    kind: int, image: Any, weight: Any, windows: SlidingWindows, groups: int, outermost: bool
) -> bool:
    """Compares estimates, in microseconds for single precision: linear functions of millions of
    multiplications and megabytes, fitted to 211 convolutions (docs/compile-passes.md)."""
    samples, channels, *size = image.shape
    outputs, in_group, *kernel = weight.shape
    places = windows.places(size)
    numbers = (*image.shape, *weight.shape, *places)
    if not all(isinstance(number, int) for number in numbers):
        return False
    seen, results = samples * math.prod(size), samples * math.prod(places)
    megabyte = image.itemsize / 1e6
    multiplied = results * weight.numel() * megabyte / 4
    moved = (seen * channels + results * outputs) * megabyte
    weights = weight.numel() * megabyte
    seen_by_kernel = seen * outputs if kind == OF_IMAGE else results * channels
    gathered = seen_by_kernel * math.prod(kernel) * megabyte
    slow = in_group < _FEW_CHANNELS and (kind == OF_IMAGE or (groups > 1 and outermost))
    library = 46.5 + (83.8 if slow else 18.5) * multiplied + 72 * moved + 124 * weights
    gather = 93 if gathered <= _MOST_REUSED else 418
    products = 2.2 + 20.3 * multiplied + gather * gathered + 55 * moved + 46 * weights
    return bool(products < library)


def _is_plain(node: Node, images: Any, *rest: Any) -> bool:
    stride, padding, dilation, transposed, output_padding = rest
    kind = value(images)
    return (
        not node.kwargs
        and not transposed
        and not any(output_padding)
        and is_on_host(kind)
        and kind.is_floating_point()
        and kind.itemsize >= 4
        and kind.numel() > 0
        and len(stride) == len(padding) == len(dilation) == kind.dim() - 2
    )


def _forward(node: Node, outermost: bool, image: Any, weight: Any, bias: Any, *rest: Any) -> None:
    windows, groups = SlidingWindows([*value(weight).shape[2:]], *map(list, rest[:3])), rest[-1]
    if not products_are_faster(FORWARD, value(image), value(weight), windows, groups, outermost):
        return
    result = _convolved(node, image, weight, windows, groups)
    if is_tensor(bias):
        sizes = [-1, *[1] * len(windows.kernel)]
        result = emit(node, aten.add.Tensor, result, emit(node, aten.view.default, bias, sizes))
    replace(node, result)


def _backward(
    node: Node, outermost: bool, gradient: Any, image: Any, weight: Any, *rest: Any
) -> None:
    _, stride, padding, dilation, _, _, groups, _ = rest
    windows = SlidingWindows(
        [*value(weight).shape[2:]], list(stride), list(padding), list(dilation)
    )
    for user in list(node.users):
        if not calls(user, operator.getitem) or not user.users:
            continue
        result, kind = None, user.args[1]
        decisive: Any = OF_WEIGHT if kind == OF_BIAS else kind
        if not products_are_faster(
            decisive, value(image), value(weight), windows, groups, outermost
        ):
            continue
        if kind == OF_BIAS:
            dims = [dim for dim in range(value(gradient).dim()) if dim != 1]
            result = emit(user, aten.sum.dim_IntList, gradient, dims)
        elif kind == OF_IMAGE:
            result = _of_image(user, gradient, image, weight, windows, groups)
        elif groups > 1 and value(image).shape[0] == 1:
            result = _of_weights(user, gradient, image, weight, windows, groups)
        else:
            result = _of_weight(user, gradient, image, weight, windows, groups)
        if result is not None:
            replace(user, result)


def _convolved(
    before: Node, image: Node, weight: Node, windows: SlidingWindows, groups: int
) -> Node:
    """Returns the convolution, [samples, outputs, …], laid out with the outputs first."""
    samples, _, *size = value(image).shape
    outputs = value(weight).shape[0]
    matrix = _of_groups(before, weight, groups)
    product = _product(before, matrix, _gathered(before, image, windows, groups))
    shape = [outputs, samples, *windows.places(size)]
    return _swapped(before, emit(before, aten.view.default, product, shape))


def _of_image(
    before: Node, gradient: Any, image: Any, weight: Any, windows: SlidingWindows, groups: int
) -> Node | None:
    """Returns the cotangent's convolution with the flipped kernel, or None if a step is skipped."""
    padding = [
        dilation * (kernel - 1) - pad
        for kernel, pad, dilation in zip(
            windows.kernel, windows.padding, windows.dilation, strict=True
        )
    ]
    if any(step != 1 for step in windows.stride) or any(pad < 0 for pad in padding):
        return None
    outputs, channels, *kernel = value(weight).shape
    turned = emit(before, aten.flip.default, weight, [*range(2, 2 + len(kernel))])
    if groups == 1:
        turned = _swapped(before, turned)
    else:
        grouped = _reshaped(before, turned, [groups, outputs // groups, channels, *kernel])
        swapped = emit(before, aten.transpose.int, grouped, 1, 2)
        turned = _reshaped(before, swapped, [groups * channels, outputs // groups, *kernel])
    return _convolved(before, gradient, turned, windows._replace(padding=padding), groups)


def _of_weight(
    before: Node, gradient: Any, image: Any, weight: Any, windows: SlidingWindows, groups: int
) -> Node:
    rows = _of_groups(before, _swapped(before, gradient), groups)
    gathered = _gathered(before, image, windows, groups)
    last = value(gathered).dim() - 1
    columns = emit(before, aten.permute.default, gathered, [*range(last - 1), last, last - 1])
    product = _product(before, rows, columns)
    return emit(before, aten.view.default, product, list(value(weight).shape))


def _of_weights(
    before: Node, gradient: Any, image: Any, weight: Any, windows: SlidingWindows, groups: int
) -> Node:
    """Returns the gradient of each group's kernel, for a batch of samples with a kernel each."""
    _, channels, *size = value(image).shape
    places = math.prod(windows.places(size))
    samples = _reshaped(before, image, [groups, channels // groups, *size])
    rows = _reshaped(before, gradient, [groups, -1, places])
    gathered = _gathered(before, samples, windows)
    columns = emit(before, aten.view.default, gathered, [-1, groups, places])
    columns = emit(before, aten.permute.default, columns, [1, 2, 0])
    product = emit(before, aten.bmm.default, rows, columns)
    return emit(before, aten.view.default, product, list(value(weight).shape))


def _of_groups(before: Node, rows: Node, groups: int) -> Node:
    """Returns a matrix of a convolution's rows, or one for each group."""
    count = value(rows).shape[0]
    sizes = [count, -1] if groups == 1 else [groups, count // groups, -1]
    return _reshaped(before, rows, sizes)


def _product(before: Node, one: Node, other: Node) -> Node:
    batched = value(one).dim() == 3
    return emit(before, (aten.bmm if batched else aten.mm).default, one, other)


def _gathered(before: Node, image: Node, windows: SlidingWindows, groups: int = 1) -> Node:
    """Returns the factors of each kernel element, [channels x kernel, samples x places], with the
    groups before these if there are several."""
    samples, channels, *size = value(image).shape
    if any(windows.padding):
        pads = [pad for padding in reversed(windows.padding) for pad in (padding, padding)]
        image = emit(before, aten.constant_pad_nd.default, image, pads, 0.0)
    for at, (kernel, stride, dilation) in enumerate(
        zip(windows.kernel, windows.stride, windows.dilation, strict=True)
    ):
        reach = dilation * (kernel - 1) + 1
        image = emit(before, aten.unfold.default, image, 2 + at, reach, stride)
        if dilation != 1:
            last = value(image).dim() - 1
            image = emit(before, aten.slice.Tensor, image, last, 0, reach, dilation)
    dims = len(size)
    order = [1, *range(2 + dims, 2 + 2 * dims), 0, *range(2, 2 + dims)]
    image = emit(before, aten.permute.default, image, order)
    places = math.prod(windows.places(size))
    sizes = [channels // groups * math.prod(windows.kernel), samples * places]
    return _reshaped(before, image, sizes if groups == 1 else [groups, *sizes])


def _reshaped(before: Node, node: Node, sizes: list[int]) -> Node:
    try:
        return emit(before, aten.view.default, node, sizes)
    except (RuntimeError, ValueError):
        dense = emit(before, aten.clone.default, node, memory_format=torch.contiguous_format)
        return emit(before, aten.view.default, dense, sizes)


def _swapped(before: Node, node: Node) -> Node:
    """Swaps the first two dimensions."""
    order = [1, 0, *range(2, value(node).dim())]
    return emit(before, aten.permute.default, node, order)
