"""Interpolation and grid samplers, by the weights that the operator gives its elements."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    union,
    union_last,
    union_over,
)
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.products import product
from torchlayers.transforms.sparse.detection.rules.windows import (
    back_through_windows,
    through_windows,
)

_INTERPOLATIONS = [
    name
    for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
    for name in (f"upsample_{kind}", f"_upsample_{kind}_aa")
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


@rule(*(getattr(aten, f"{name}_backward").default for name in _INTERPOLATIONS))
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
