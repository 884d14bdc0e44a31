"""Pooling, and its gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, union, united
from torchlayers.transforms.sparse.detection.layer import Call, plain_value, rule
from torchlayers.transforms.sparse.detection.rules.structural import everything
from torchlayers.transforms.sparse.detection.rules.windows import (
    back_through_windows,
    per_dimension,
    sliding,
    through_windows,
)


def _pooling(call: Call, x: Any, out: Sequence[int]) -> list[Tensor]:
    """The windows of a pooling of x to the spatial sizes of out."""
    ndim = len(_spatial(call))
    kernel = per_dimension(call["kernel_size"], ndim)
    options = zip(
        out[-ndim:],
        x.shape[-ndim:],
        kernel,
        per_dimension(call.arguments.get("stride"), ndim, kernel),
        per_dimension(call.arguments.get("padding", 0), ndim, 0),
        per_dimension(call.arguments.get("dilation", 1), ndim, 1),
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
