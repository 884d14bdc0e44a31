"""Reductions, running reductions, and operators that are dense along some dimensions."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    prefix_union,
    spread,
    union,
    union_all,
    union_over,
)
from torchlayers.transforms.sparse.detection.layer import Call, broadcast_shapes, plain_value, rule
from torchlayers.transforms.sparse.detection.rules.structural import everything


def _dims(call: Call, x: IndexSets) -> list[int]:
    dim = call.arguments.get("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return [*range(x.ids.dim())]
    return [dim] if isinstance(dim, int) else [*dim]


def reduced(call: Call, x: IndexSets) -> IndexSets:
    return union_over(x, _dims(call, x)).reshape(call.shape)


@rule("reduction", aten.logsumexp, aten.linalg_vector_norm, aten.norm, aten.nanmedian.default)
@rule(aten.median.default, aten.nansum, aten.linalg__powsum)
def reduction(call: Call) -> Any:
    (sets,) = call.parts()
    total = reduced(call, sets)
    return total if isinstance(call.value, Tensor) else [total] * len(call.value)


@rule(aten.amax, aten.amin)
def extremum(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    if call.layer.is_local:
        sets = _extremal(call, sets, plain_value(call.value))
    return reduced(call, sets)


def _extremal(call: Call, sets: IndexSets, result: Tensor | None) -> IndexSets:
    value = plain_value(call["self"].value)
    if value is None or result is None:
        return sets
    dims = _dims(call, sets)
    shape = list(value.shape)
    for d in dims:
        if shape:
            shape[d] = 1
    loses = (value != result.reshape(shape)) & ~value.isnan()
    return sets.without(loses)


@rule(aten.aminmax)
def both_extrema(call: Call) -> Any:
    (sets,) = call.parts()
    if not call.layer.is_local:
        return [reduced(call, sets)] * 2
    return [reduced(call, _extremal(call, sets, plain_value(value))) for value in call.value]


@rule(aten.max, aten.min)
def extremum_and_place(call: Call) -> Any:
    if call.arguments.get("other") is not None:  # of two tensors
        return NotImplemented
    (sets,) = call.parts()
    if isinstance(call.value, Tensor):
        if call.layer.is_local:
            sets = _extremal(call, sets, plain_value(call.value))
        return reduced(call, sets)
    if call.layer.is_local:
        sets = _extremal(call, sets, plain_value(call.value[0]))
    total = reduced(call, sets)
    return total, None if call.layer.is_local else total


@rule(aten.cumsum, aten.cumprod, aten.logcumsumexp, aten._logcumsumexp)
def running(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    return prefix_union(sets, call["dim"])


@rule(aten.cummax, aten.cummin)
def running_extremum(call: Call) -> Any:
    (sets,) = call.parts()
    places = plain_value(call.value[1])
    if call.layer.is_local and places is not None:
        if not sets.ids.dim():
            return sets, None
        return IndexSets(sets.ids.gather(call["dim"], places), sets.table), None
    total = prefix_union(sets, call["dim"])
    return total, total


def _spread_dims(call: Call, dims: list[int]) -> IndexSets | None:
    """Each operand is dense along the dimensions, and of the result's shape."""
    parts = [spread(part, dims) if part.ids.dim() else part for part in call.parts()]
    return union(parts, call.shape)


@rule(aten._sample_dirichlet)
def sample_dirichlet(call: Call) -> IndexSets | None:
    return _spread_dims(call, [-1])


@rule(
    aten._log_softmax,
    aten._log_softmax_backward_data,
    aten._safe_softmax,
    aten._softmax,
    aten._softmax_backward_data,
)
def along_dim(call: Call) -> IndexSets | None:
    return _spread_dims(call, [call["dim"]])


@rule(aten._fft_c2c, aten._fft_r2c, aten._fft_c2r)
def fft(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    dims = [*call["dim"]]
    return union_over(sets, dims, keepdim=True).expand(call.shape)


@rule(aten.native_layer_norm)
def native_layer_norm(call: Call) -> Any:
    count = len(call["normalized_shape"])
    result, statistics, _ = call.value
    x = call.sets("input")
    parts = []
    of_statistics = None
    if x is not None:
        dims = [-1 - d for d in range(count)]
        parts.append(spread(x, dims))
        of_statistics = union_over(x, dims, keepdim=True).reshape(statistics.shape)
    parts += call.parts("weight", "bias")
    return union(parts, result.shape), of_statistics, of_statistics


@rule(aten.native_group_norm)
def native_group_norm(call: Call) -> Any:
    n, channels, size, groups = (call[name] for name in ("N", "C", "HxW", "group"))
    result, statistics, _ = call.value
    parts, of_statistics = [], None
    x = call.sets("input")
    if x is not None:
        lines = x.reshape([n, groups, channels // groups * size])
        of_statistics = union_over(lines, [2]).reshape(statistics.shape)
        parts.append(spread(lines, [2]).reshape(result.shape))
    shape = [1, channels] + [1] * (result.dim() - 2)
    parts += [part.reshape(shape) for part in call.parts("weight", "bias")]
    return union(parts, result.shape), of_statistics, of_statistics


@rule(aten.dist)
def dist(call: Call) -> IndexSets | None:
    return everything(call)


@rule(aten._cdist_forward, aten._euclidean_dist)
def cdist(call: Call) -> IndexSets | None:
    x, y = call.sets("x1"), call.sets("x2")
    parts = []
    if x is not None:
        parts.append(union_over(x, [-1]).moved(lambda ids: ids.unsqueeze(-1)))
    if y is not None:
        parts.append(union_over(y, [-1]).moved(lambda ids: ids.unsqueeze(-2)))
    return union(parts, call.shape)


@rule(aten._pdist_forward)
def pdist(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    rows = union_over(sets, [1])
    first, second = torch.triu_indices(sets.shape[0], sets.shape[0], 1)
    ends = [IndexSets(rows.ids[at], rows.table) for at in (first, second)]
    return union(ends, call.shape)


@rule(aten.nll_loss_forward, aten.nll_loss2d_forward)
def nll_loss(call: Call) -> Any:
    sets, target = call.sets("self"), call.known("target")
    value, total_weight = call.value
    if sets is None or target is None or call.sets("weight") is not None:
        total = union_all(call.parts(), ())
        return total.expand(value.shape), total.expand(total_weight.shape)
    ignored = target == call["ignore_index"]
    places = target.masked_fill(ignored, 0)
    if sets.ids.dim() == 1:
        picked = sets.moved(lambda ids: ids[places])
    else:
        picked = sets.moved(lambda ids: ids.gather(1, places.unsqueeze(1)).squeeze(1))
    picked = picked.without(ignored)
    if call["reduction"]:
        picked = union_over(picked, range(picked.ids.dim()))
    return picked.reshape(value.shape), None


@rule(aten.binary_cross_entropy, aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss)
@rule(aten.soft_margin_loss)
def pointwise_loss(call: Call) -> IndexSets | None:
    shape = broadcast_shapes(*(x.value.shape for x in call.tensors))
    sets = union(call.parts(), shape)
    return union_over(sets, range(sets.ids.dim())) if call["reduction"] else sets


@rule(aten.multi_margin_loss)
def multi_margin_loss(call: Call) -> IndexSets | None:
    if call["reduction"] or call.sets("weight") is not None or call.sets("self") is None:
        return everything(call)
    return union_over(call.parts("self")[0], [-1]).reshape(call.shape)
