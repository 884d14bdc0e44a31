"""Convolutions, pooling and interpolation: an element depends on a window in each dimension.

A window is given by dimension: an int64 tensor of the positions along the input's dimension, one
row for each position along the output's dimension, -1 where the window reaches outside.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    union,
    union_last,
    union_over,
    united,
)
from torchlayers.transforms.sparse.detection.layer import Call, plain_value, rule
from torchlayers.transforms.sparse.detection.rules.products import product
from torchlayers.transforms.sparse.detection.rules.structural import everything

aten: Any = torch.ops.aten


def sliding(
    count: int, length: int, kernel: int, stride: int, padding: int, dilation: int
) -> Tensor:
    """The windows of a convolution or pooling, along one dimension."""
    places = torch.arange(count).unsqueeze(1) * stride + torch.arange(kernel) * dilation - padding
    return places.masked_fill((places < 0) | (places >= length), -1)


def fractional(
    count: int, length: int, kernel: int, stride: int, padding: int, dilation: int
) -> Tensor:
    """The windows of a transposed convolution."""
    places = torch.arange(count).unsqueeze(1) + padding - torch.arange(kernel) * dilation
    inside = (places >= 0) & (places % stride == 0) & (places < length * stride)
    return torch.where(inside, places.div(stride, rounding_mode="floor"), -1)


def flat_windows(by_dim: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Windows of all dimensions together, as positions in the flattened ones.

    Returns:
        A tensor of shape ``(output positions, window positions)``, -1 for outside.
    """
    flat = torch.zeros(1, 1, dtype=torch.int64)
    for windows, size in zip(by_dim, sizes, strict=True):
        outside = (flat < 0)[:, None, :, None] | (windows < 0)[None, :, None, :]
        flat = (flat * size)[:, None, :, None] + windows[None, :, None, :]
        flat = flat.masked_fill(outside, -1).flatten(2).flatten(0, 1)
    return flat


def seen_through(x: Tensor, ndim: int, windows: Tensor, outside: Any) -> Tensor:
    """The elements in each window: the last ndim dimensions become those of windows."""
    flat = x.flatten(-ndim)
    padded = torch.cat([flat, flat.new_full((*flat.shape[:-1], 1), outside)], -1)
    return padded[..., windows]  # -1 is the element outside


def through_windows(sets: IndexSets, by_dim: Sequence[Tensor], shape: Sequence[int]) -> IndexSets:
    """The union over each window."""
    windows = flat_windows(by_dim, sets.shape[-len(by_dim) :])
    ids = seen_through(sets.ids, len(by_dim), windows, 0)
    return union_last(IndexSets(ids, sets.table)).reshape(shape)


def back_through_windows(
    sets: IndexSets, by_dim: Sequence[Tensor], shape: Sequence[int]
) -> IndexSets:
    """The transpose: each position gets the sets of all windows that have it."""
    ndim = len(by_dim)
    windows = flat_windows(by_dim, shape[-ndim:])
    planes = torch.Size(shape[:-ndim]).numel()
    plane = torch.Size(shape[-ndim:]).numel()
    ids = sets.ids.reshape(planes, -1, 1).expand(planes, *windows.shape)
    ids = torch.where(windows < 0, 0, ids)
    groups = torch.arange(planes).view(-1, 1, 1) * plane + windows.clamp_min(0)
    return united(shape, groups, IndexSets(ids, sets.table))


def _each(value: Any, count: int, default: Any = None) -> list[int]:
    """A parameter for each dimension, from one for all or a list that may be empty."""
    if isinstance(value, int):
        return [value] * count
    if not value:
        return _each(default, count)
    return [*value] if len(value) == count else [value[0]] * count


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
        self.options = [*zip(*(_each(call[name], ndim) for name in names), strict=True)]

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
            given = torch.zeros(tuple(x_shape), dtype=torch.bool) if x_zeros is None else x_zeros
            seen_zeros = self.columns(given, windows, True)
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
        own, own_zeros = call.sets(small), call.zeros(small)

        def rows(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            parts = x.flatten(2).reshape(x.shape[0], self.groups, x.shape[1] // self.groups, -1)
            return parts.permute(1, 2, 0, 3).flatten(2)

        ids = rows(None if own is None else own.ids)
        terms = product(
            None if own is None or ids is None else IndexSets(ids, own.table),
            rows(own_zeros),
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


def _pooling(call: Call, x: Any, out: Sequence[int]) -> list[Tensor]:
    """The windows of a pooling of x to the spatial sizes of out."""
    ndim = len(_spatial(call))
    kernel = _each(call["kernel_size"], ndim)
    options = zip(
        out[-ndim:],
        x.shape[-ndim:],
        kernel,
        _each(call.arguments.get("stride"), ndim, kernel),
        _each(call.arguments.get("padding", 0), ndim, 0),
        _each(call.arguments.get("dilation", 1), ndim, 1),
        strict=True,
    )
    return [sliding(*each) for each in options]


def _adaptive(x: Any, out: Sequence[int], ndim: int) -> list[Tensor]:
    by_dim = []
    for count, length in zip(out[-ndim:], x.shape[-ndim:], strict=True):
        places = torch.arange(count)
        first = (places * length).div(count, rounding_mode="floor")
        end = -((-(places + 1) * length).div(count, rounding_mode="floor"))
        windows = first.unsqueeze(1) + torch.arange(int((end - first).max()) if count else 1)
        by_dim.append(windows.masked_fill(windows >= end.unsqueeze(1), -1))
    return by_dim


def _spatial(call: Call) -> range:
    """As many numbers as the operator has spatial dimensions, by its name."""
    name = call.op.overloadpacket.__name__
    return range(next(n for n in (1, 2, 3) if f"{n}d" in name))


def _windows(call: Call, x: Any, out: Sequence[int]) -> list[Tensor]:
    if "adaptive" in call.op.overloadpacket.__name__:
        return _adaptive(x, out, len(_spatial(call)))
    return _pooling(call, x, out)


@rule(
    aten._adaptive_avg_pool2d,
    aten._adaptive_avg_pool3d,
    aten.avg_pool2d,
    aten.avg_pool3d,
)
def average(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    return through_windows(sets, _windows(call, call["self"], call.shape), call.shape)


@rule(
    aten._adaptive_avg_pool2d_backward,
    aten._adaptive_avg_pool3d_backward,
    aten.avg_pool2d_backward,
    aten.avg_pool3d_backward,
)
def average_backward(call: Call) -> IndexSets | None:
    sets = call.sets("grad_output")
    if sets is None:
        return None
    by_dim = _windows(call, call["self"], call["grad_output"].shape)
    return back_through_windows(sets, by_dim, call.shape)


@rule(
    aten.adaptive_max_pool2d,
    aten.adaptive_max_pool3d,
    aten.max_pool2d_with_indices,
    aten.max_pool3d_with_indices,
)
def maximum(call: Call) -> Any:
    (sets,) = call.parts()
    values, places = call.value
    chosen = plain_value(places)
    ndim = len(_spatial(call))
    if call.layer.is_local and chosen is not None:
        ids = sets.ids.flatten(-ndim).gather(-1, chosen.flatten(-ndim)).reshape(values.shape)
        return IndexSets(ids, sets.table), None
    result = through_windows(sets, _windows(call, call["self"], values.shape), values.shape)
    return result, result


@rule(
    aten.adaptive_max_pool2d_backward,
    aten.adaptive_max_pool3d_backward,
    aten.max_pool2d_with_indices_backward,
    aten.max_pool3d_with_indices_backward,
)
def maximum_backward(call: Call) -> IndexSets | None:
    g, x = call["grad_output"], call["self"]
    places, sets = call.known("indices"), call.sets("grad_output")
    marks = [] if call.layer.is_local or places is not None else call.parts("self", "indices")
    ndim = len(_spatial(call))
    if places is not None:
        if sets is None:
            return None
        plane = torch.Size(call.shape[-ndim:]).numel()
        flat = places.reshape(-1, places[(0,) * (places.dim() - ndim)].numel())
        targets = flat + torch.arange(flat.shape[0]).unsqueeze(1) * plane
        return united(call.shape, targets, sets.reshape(targets.shape))
    parts = [call.layer.marked(part) for part in marks if part.shape == call.shape]
    if len(parts) < len(marks):
        parts = [call.layer.marked(everything(call))]
    if sets is not None:
        by_dim = _windows(call, x, g.shape)
        parts.append(back_through_windows(sets, by_dim, call.shape))
    return union(parts, call.shape)


_INTERPOLATIONS = [
    name
    for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
    for name in (f"upsample_{kind}", f"_upsample_{kind}_aa")
    if hasattr(aten, name)
]


def _interpolation(call: Call, op: Any, sizes: Sequence[int], out: Sequence[int]) -> list[Tensor]:
    """The windows of an interpolation along each dimension, from its weights."""
    ndim = len(sizes)
    by_dim = []
    for d, (length, count) in enumerate(zip(sizes, out, strict=True)):
        shape = [1] * ndim
        shape[d] = length
        probe = torch.eye(length, dtype=torch.float64).reshape(1, length, *shape)
        target = [1] * ndim
        target[d] = count
        names = ["align_corners", "scales", "scales_d", "scales_h", "scales_w"]
        options = [call[name] for name in names if name in call.arguments]
        weights = op.default(probe, target, *options).reshape(length, count).t()
        by_dim.append(_support(weights))
    return by_dim


def _support(weights: Tensor) -> Tensor:
    """The columns of the nonzero elements of each row, padded with -1."""
    places = torch.where(weights != 0, torch.arange(weights.shape[1]), -1)
    most = int((places >= 0).sum(1).max()) if places.numel() else 1
    return places.sort(1, descending=True).values[:, : max(most, 1)]


@rule(*(getattr(aten, name).default for name in _INTERPOLATIONS))
def interpolated(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    ndim = call["self"].dim() - 2
    by_dim = _interpolation(call, call.op.overloadpacket, sets.shape[-ndim:], call.shape[-ndim:])
    return through_windows(sets, by_dim, call.shape)


@rule(
    *(
        getattr(aten, f"{name}_backward").default
        for name in (
            *_INTERPOLATIONS,
            *(
                f"{kind}{n}d"
                for kind, n in itertools.product(
                    ("upsample_nearest", "_upsample_nearest_exact"), (1, 2, 3)
                )
            ),
        )
        if hasattr(aten, f"{name}_backward")
    )
)
def interpolated_backward(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    ndim = call["grad_output"].dim() - 2
    name = call.op.overloadpacket.__name__.removesuffix("_backward")
    by_dim = _interpolation(call, getattr(aten, name), call.shape[-ndim:], sets.shape[-ndim:])
    return back_through_windows(sets, by_dim, call.shape)


# Elements of a grid sampler's weights that are computed to find its structure.
_PROBED = 1 << 22


@rule(aten.grid_sampler_2d, aten.grid_sampler_3d, aten._grid_sampler_2d_cpu_fallback)
def grid_sampler(call: Call) -> IndexSets | None:
    x, grid = call["input"], call["grid"]
    ndim = x.dim() - 2
    sets, of_grid = call.sets(x), call.sets(grid)
    parts = []
    if sets is not None:
        places = call.known(grid)
        count, size = call.shape[2:].numel(), x.shape[2:].numel()
        if places is not None and x.shape[0] * count * size <= _PROBED:
            probe = torch.eye(size, dtype=places.dtype).reshape(1, size, *x.shape[2:])
            options = (call["interpolation_mode"], call["padding_mode"], call["align_corners"])
            op = aten.grid_sampler_2d if ndim == 2 else aten.grid_sampler_3d
            weights = op(probe.expand(x.shape[0], *probe.shape[1:]), places, *options)
            zeros = weights.flatten(2) == 0
            rows = sets.reshape([*x.shape[:2], size])
            terms = product(rows, None, None, zeros, (x.shape[0], x.shape[1], count))
            parts.append(terms[0].reshape(call.shape))
        else:
            whole = union_over(sets, range(2, x.dim()))
            parts.append(whole.reshape([*x.shape[:2], *[1] * ndim]))
    if of_grid is not None:
        parts.append(union_last(of_grid).moved(lambda ids: ids.unsqueeze(1)))
    return union(parts, call.shape)
