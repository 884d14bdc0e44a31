"""Rewrites small convolutions as matrix products with the windows that the kernel sees (im2col).

A library's convolution spends time on choosing a kernel and laying out its arguments. The windows
are gathered once for all their readers: a layer's output, and its weight's gradient, for each
sample or for all together.
"""

import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.core.device import is_on_host
from torchlayers.fx.nodes import (
    aten,
    calls,
    emit,
    is_tensor,
    replace,
    statically_true,
    value,
)

# Number of multiplications up to which products were faster; docs/compile-passes.md. If there is a
# kernel for each sample, a library pays its setup cost for each.
SMALL = 1 << 23
SMALL_WITH_KERNELS = 1 << 24


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
    for node in graph.graph.nodes:
        if calls(node, aten.convolution.default) and _is_plain(node, node.args[0], *node.args[3:8]):
            _forward(node, *node.args)
        elif calls(node, aten.convolution_backward.default) and _is_plain(
            node, node.args[0], *node.args[4:9]
        ):
            _backward(node, *node.args)


def _is_plain(node: Node, told: Any, *rest: Any) -> bool:
    stride, padding, dilation, transposed, output_padding = rest
    kind = value(told)
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


def _forward(node: Node, image: Any, weight: Any, bias: Any, *rest: Any) -> None:
    windows = SlidingWindows([*value(weight).shape[2:]], *map(list, rest[:3]))
    if rest[-1] != 1 or not _is_small(value(node), value(weight), SMALL):
        return
    result = _convolved(node, image, weight, windows)
    if is_tensor(bias):
        sizes = [-1, *[1] * len(windows.kernel)]
        result = emit(node, aten.add.Tensor, result, emit(node, aten.view.default, bias, sizes))
    replace(node, result)


def _backward(node: Node, given: Any, image: Any, weight: Any, *rest: Any) -> None:
    _, stride, padding, dilation, _, _, groups, _ = rest
    windows = SlidingWindows(
        [*value(weight).shape[2:]], list(stride), list(padding), list(dilation)
    )
    limit = SMALL if groups == 1 else SMALL_WITH_KERNELS
    if not _is_small(value(given), value(weight), limit):
        return
    for item in list(node.users):
        if not calls(item, operator.getitem) or not item.users:
            continue
        result = None
        if item.args[1] == 0 and groups == 1:
            result = _of_image(item, given, weight, windows)
        elif item.args[1] == 1 and groups == 1:
            result = _of_weight(item, given, image, weight, windows)
        elif item.args[1] == 1 and value(image).shape[0] == 1:
            result = _of_weights(item, given, image, weight, windows, groups)
        elif item.args[1] == 2:
            dims = [dim for dim in range(value(given).dim()) if dim != 1]
            result = emit(item, aten.sum.dim_IntList, given, dims)
        if result is not None:
            replace(item, result)


def _is_small(output: Tensor, weight: Tensor, limit: int) -> bool:
    return statically_true(output.numel() * weight[0].numel() <= limit)


def _convolved(before: Node, image: Node, weight: Node, windows: SlidingWindows) -> Node:
    """Returns the convolution, [samples, outputs, …], laid out with the outputs first."""
    samples, _, *size = value(image).shape
    outputs = value(weight).shape[0]
    matrix = _reshaped(before, weight, [outputs, -1])
    product = emit(before, aten.mm.default, matrix, _gathered(before, image, windows))
    shape = [outputs, samples, *windows.places(size)]
    return _swapped(before, emit(before, aten.view.default, product, shape))


def _of_image(item: Node, given: Any, weight: Any, windows: SlidingWindows) -> Node | None:
    """Returns the cotangent's convolution with the flipped kernel, or None if a step is skipped."""
    padding = [
        dilation * (kernel - 1) - pad
        for kernel, pad, dilation in zip(
            windows.kernel, windows.padding, windows.dilation, strict=True
        )
    ]
    if any(step != 1 for step in windows.stride) or any(pad < 0 for pad in padding):
        return None
    dims = [*range(2, value(weight).dim())]
    turned = _swapped(item, emit(item, aten.flip.default, weight, dims))
    return _convolved(item, given, turned, windows._replace(padding=padding))


def _of_weight(item: Node, given: Any, image: Any, weight: Any, windows: SlidingWindows) -> Node:
    outputs = value(given).shape[1]
    rows = _reshaped(item, _swapped(item, given), [outputs, -1])
    columns = emit(item, aten.permute.default, _gathered(item, image, windows), [1, 0])
    product = emit(item, aten.mm.default, rows, columns)
    return emit(item, aten.view.default, product, list(value(weight).shape))


def _of_weights(
    item: Node, given: Any, image: Any, weight: Any, windows: SlidingWindows, groups: int
) -> Node:
    """Returns the gradient of each group's kernel, for a batch of samples with a kernel each."""
    _, channels, *size = value(image).shape
    places = math.prod(windows.places(size))
    samples = _reshaped(item, image, [groups, channels // groups, *size])
    rows = _reshaped(item, given, [groups, -1, places])
    gathered = _gathered(item, samples, windows)
    columns = emit(item, aten.view.default, gathered, [-1, groups, places])
    columns = emit(item, aten.permute.default, columns, [1, 2, 0])
    product = emit(item, aten.bmm.default, rows, columns)
    return emit(item, aten.view.default, product, list(value(weight).shape))


def _gathered(before: Node, image: Node, windows: SlidingWindows) -> Node:
    """Returns the factors of each kernel element, [channels x kernel, samples x places]."""
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
    return _reshaped(before, image, [channels * math.prod(windows.kernel), samples * places])


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
