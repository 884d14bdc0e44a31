"""Convolutions and their gradients, as products of windows with matrices of weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, union, union_over
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.products import product
from torchlayers.transforms.sparse.detection.rules.structural import everything
from torchlayers.transforms.sparse.detection.rules.windows import (
    flat_windows,
    fractional,
    per_dimension,
    seen_through,
    sliding,
)


class Convolution:
    """The sets of a convolution's result, and of its transposes.

    Args:
        weight: the shape of the weight: ``(out, in / groups, ...)``, or of a transposed convolution
            ``(in, out / groups, ...)``.
    """

    def __init__(self, call: Call, weight: torch.Size, is_transposed: bool) -> None:
        ndim = len(weight) - 2
        self.weight, self.is_transposed, self.ndim = weight, is_transposed, ndim
        self.groups = call["groups"]
        names = ("stride", "padding", "dilation")
        self.options = [*zip(*(per_dimension(call[name], ndim) for name in names), strict=True)]

    def windows(self, out: Sequence[int], sizes: Sequence[int], is_transposed: bool) -> Tensor:
        along = fractional if is_transposed else sliding
        by_dim = [
            along(count, length, kernel, *options)
            for count, length, kernel, options in zip(
                out, sizes, self.weight[2:], self.options, strict=True
            )
        ]
        return flat_windows(by_dim, sizes)

    def columns(self, x: Tensor | None, windows: Tensor, outside: Any) -> Tensor | None:
        """What each output position sees: ``(groups, batch * positions, channels * window)``."""
        if x is None:
            return None
        seen = seen_through(x, self.ndim, windows, outside)
        batch, channels, count, size = seen.shape
        seen = seen.reshape(batch, self.groups, channels // self.groups, count, size)
        return seen.permute(1, 0, 3, 2, 4).reshape(self.groups, batch * count, -1)

    def matrix(self, weight: Tensor | None, is_transposed: bool) -> Tensor | None:
        """``(groups, channels * window, output channels)``."""
        if weight is None:
            return None
        grouped = weight.reshape(self.groups, -1, *weight.shape[1:]).flatten(3)
        order = (0, 1, 3, 2) if is_transposed else (0, 2, 3, 1)
        return grouped.permute(order).flatten(1, 2)

    def result(
        self,
        x: IndexSets | None,
        x_zeros: Tensor | None,
        x_shape: Sequence[int],
        weight: IndexSets | None,
        weight_zeros: Tensor | None,
        shape: Sequence[int],
        is_transposed: bool,
    ) -> IndexSets | None:
        if weight_zeros is not None:
            weight_zeros = weight_zeros.expand(self.weight)
        if x_zeros is not None:
            x_zeros = x_zeros.expand(tuple(x_shape))
        windows = self.windows(shape[2:], x_shape[2:], is_transposed)
        ids = self.columns(None if x is None else x.ids, windows, 0)
        seen_zeros = None
        if weight is not None:
            zeros = torch.zeros(tuple(x_shape), dtype=torch.bool) if x_zeros is None else x_zeros
            seen_zeros = self.columns(zeros, windows, True)
        matrix = self.matrix(None if weight is None else weight.ids, is_transposed)
        height = shape[0] * windows.shape[0]
        width = shape[1] // self.groups
        terms = product(
            None if x is None or ids is None else IndexSets(ids, x.table),
            seen_zeros,
            None if weight is None or matrix is None else IndexSets(matrix, weight.table),
            self.matrix(weight_zeros, is_transposed),
            (self.groups, height, width),
        )
        if not terms:
            return None

        def in_place(ids: Tensor) -> Tensor:
            parts = ids.reshape(self.groups, shape[0], -1, width)
            return parts.permute(1, 0, 3, 2).reshape(tuple(shape))

        return union([term.moved(in_place) for term in terms], shape)

    def of_weight(
        self,
        call: Call,
        small: Any,
        large: Any,
    ) -> IndexSets | None:
        """The gradient by the weight: small has the positions whose windows are in large."""
        windows = self.windows(small.shape[2:], large.shape[2:], False)
        sets, zeros = call.sets(large), call.zeros(large)
        seen = self.columns(None if sets is None else sets.ids, windows, 0)
        if zeros is None:
            zeros = torch.zeros(large.shape, dtype=torch.bool)
        seen_zeros = self.columns(zeros, windows, True)
        weight_sets, weight_zeros = call.sets(small), call.zeros(small)

        def rows(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            parts = x.flatten(2).reshape(x.shape[0], self.groups, x.shape[1] // self.groups, -1)
            return parts.permute(1, 2, 0, 3).flatten(2)

        ids = rows(None if weight_sets is None else weight_sets.ids)
        terms = product(
            None if weight_sets is None or ids is None else IndexSets(ids, weight_sets.table),
            rows(weight_zeros),
            None if sets is None or seen is None else IndexSets(seen, sets.table),
            seen_zeros,
            (self.groups, small.shape[1] // self.groups, self.weight[1:].numel()),
        )
        return union([term.reshape(self.weight) for term in terms], self.weight) if terms else None


@rule(aten.convolution, aten._convolution)
def convolution(call: Call) -> IndexSets | None:
    x, weight = call["input"], call["weight"]
    is_transposed = call["transposed"]
    if x.dim() != weight.dim():
        return everything(call)
    conv = Convolution(call, weight.shape, is_transposed)
    sets = conv.result(
        call.sets(x),
        call.zeros(x),
        x.shape,
        call.sets(weight),
        call.zeros(weight),
        call.shape,
        is_transposed,
    )
    parts = [] if sets is None else [sets]
    if (bias := call.sets("bias")) is not None:
        parts.append(bias.reshape([-1, *[1] * conv.ndim]))
    return union(parts, call.shape)


@rule(aten.convolution_backward)
def convolution_backward(call: Call) -> Any:
    g, x, weight = call["grad_output"], call["input"], call["weight"]
    is_transposed = call["transposed"]
    conv = Convolution(call, weight.shape, is_transposed)
    of_input, of_weight, of_bias = call["output_mask"]
    result: list[IndexSets | None] = [None, None, None]
    if of_input:
        result[0] = conv.result(
            call.sets(g),
            call.zeros(g),
            g.shape,
            call.sets(weight),
            call.zeros(weight),
            x.shape,
            not is_transposed,
        )
    if of_weight:
        result[1] = conv.of_weight(call, *((x, g) if is_transposed else (g, x)))
    if of_bias and (sets := call.sets(g)) is not None:
        result[2] = union_over(sets, [0, *range(2, g.dim())])
    return tuple(result)
