"""Windows: an element of a convolution, pooling or interpolation depends on one in each dimension.

A window is given by dimension: an int64 tensor of the positions along the input's dimension, one
row for each position along the output's dimension, -1 where the window reaches outside.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    union_last,
    united,
)
from torchlayers.transforms.sparse.detection.layer import Call


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


def per_dimension(value: Any, count: int, default: Any = None) -> list[int]:
    """A parameter for each dimension, from one for all or a list that may be empty."""
    if isinstance(value, int):
        return [value] * count
    if not value:
        return per_dimension(default, count)
    return [*value] if len(value) == count else [value[0]] * count


def windows_of(call: Call, large: Sequence[int], small: Sequence[int]) -> list[Tensor]:
    """The windows of a pooling or interpolation from one size to another, or of its gradient."""
    name = call.op.overloadpacket.__name__.removesuffix("_backward")
    ndim = next(n for n in (1, 2, 3) if f"{n}d" in name)
    sizes, counts = large[-ndim:], small[-ndim:]
    if "upsample" in name:
        return _interpolation(call, getattr(aten, name), sizes, counts)
    if "adaptive" in name:
        return [_adaptive(*option) for option in zip(sizes, counts, strict=True)]
    kernel = per_dimension(call["kernel_size"], ndim)
    options = zip(
        counts,
        sizes,
        kernel,
        per_dimension(call.arguments.get("stride"), ndim, kernel),
        per_dimension(call.arguments.get("padding", 0), ndim, 0),
        per_dimension(call.arguments.get("dilation", 1), ndim, 1),
        strict=True,
    )
    return [sliding(*option) for option in options]


def _adaptive(length: int, count: int) -> Tensor:
    places = torch.arange(count)
    first = (places * length).div(count, rounding_mode="floor")
    end = -((-(places + 1) * length).div(count, rounding_mode="floor"))
    windows = first.unsqueeze(1) + torch.arange(int((end - first).max()) if count else 1)
    return windows.masked_fill(windows >= end.unsqueeze(1), -1)


def _interpolation(call: Call, op: Any, sizes: Sequence[int], out: Sequence[int]) -> list[Tensor]:
    """By the weights that the operator gives along each dimension."""
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
