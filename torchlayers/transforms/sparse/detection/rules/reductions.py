"""Normalizations, distances and losses that depend on several dimensions in different ways."""

from typing import Any

import torch

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    spread,
    union,
    union_all,
    union_over,
)
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.structural import everything


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


@rule(aten.multi_margin_loss)
def multi_margin_loss(call: Call) -> IndexSets | None:
    if call["reduction"] or call.sets("weight") is not None or call.sets("self") is None:
        return everything(call)
    return union_over(call.parts("self")[0], [-1]).reshape(call.shape)
