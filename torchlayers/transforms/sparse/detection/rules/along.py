"""Each element depends on a line, plane, … of its operands, as csrc/rules says (Along)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.layers.rule_table import facts
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    prefix_union,
    spread,
    union,
    union_over,
)
from torchlayers.transforms.sparse.detection.layer import (
    Call,
    broadcast_shapes,
    is_differentiable,
    plain_value,
    rule,
)
from torchlayers.transforms.sparse.detection.rules.windows import through_windows, windows_of


@rule("selection")
def selected(call: Call) -> Any:
    """The result is one of the elements; for given values it is known which."""
    (sets,) = call.parts()
    values = [call.value] if isinstance(call.value, Tensor) else list(call.value)
    places = values[-1]
    results: list[IndexSets | None]
    if not call.layer.is_local:
        results = [_along(call, sets, value.shape) for value in values]
    elif is_differentiable(places):  # such as amax's result
        results = [_along(call, _equal_to(call, sets, value), value.shape) for value in values]
    elif (chosen := plain_value(places)) is None:
        results = [_along(call, sets, value.shape) for value in values]
    else:
        results = [_sets_at(call, sets, chosen), None]
    return results[0] if isinstance(call.value, Tensor) else results


def _equal_to(call: Call, sets: IndexSets, result: Tensor) -> IndexSets:
    value, extreme = plain_value(call.args[0].value), plain_value(result)
    if value is None or extreme is None:
        return sets
    dims = {d % max(value.dim(), 1) for d in _dims(call, value.dim())}
    shape = [1 if d in dims else size for d, size in enumerate(value.shape)]
    return sets.without((value != extreme.reshape(shape)) & ~value.isnan())


def _sets_at(call: Call, sets: IndexSets, places: Tensor) -> IndexSets:
    """The sets at positions along the dimension, or in the flattened last dimensions."""
    ndim = sets.ids.dim()
    if not ndim:
        return sets
    if facts(call.op)["along"] == "windows":
        spatial = len(windows_of(call, sets.shape, places.shape))
        ids = sets.ids.flatten(-spatial).gather(-1, places.flatten(-spatial))
        return IndexSets(ids.reshape(places.shape), sets.table)
    dim = call["dim"]
    is_reduced = places.dim() < ndim
    ids = sets.ids.gather(dim, places.unsqueeze(dim) if is_reduced else places)
    return IndexSets(ids.squeeze(dim) if is_reduced else ids, sets.table)


@rule("reduction", "scan", "mixing", "window")
def along(call: Call) -> Any:
    parts = call.parts()
    sets = union(parts, broadcast_shapes(*(part.shape for part in parts)))
    if isinstance(call.value, Tensor):
        return _along(call, sets, call.shape)
    return [_along(call, sets, value.shape) for value in call.value]


def _along(call: Call, sets: IndexSets, shape: Sequence[int]) -> IndexSets:
    kind = facts(call.op)["along"]
    if kind == "scans":
        return prefix_union(sets, call["dim"])
    if kind == "windows":
        return through_windows(sets, windows_of(call, sets.shape, shape), shape)
    lines = union_over(sets, _dims(call, sets.ids.dim()), keepdim=kind == "mixes")
    return lines.expand(shape) if kind == "mixes" else lines.reshape(shape)


def _dims(call: Call, ndim: int) -> Sequence[int]:
    """By the argument `dim`; of a loss, by `reduction`."""
    if not call.arguments.get("reduction", True):
        return ()
    if facts(call.op)["along"] == "mixes" and "dim" not in call.arguments:
        return (-1,)
    dim = call.arguments.get("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return range(ndim)
    return (dim,) if isinstance(dim, int) else dim


@rule("matrix function")
def of_matrices(call: Call) -> Any:
    """Each result of a matrix depends on the whole matrix."""
    if isinstance(call.value, Tensor):
        return whole_matrix(call, call.value.shape)
    return [whole_matrix(call, value.shape) for value in call.value]


def whole_matrix(call: Call, shape: torch.Size) -> IndexSets | None:
    """Sets of a result of this shape; None for one that is not of a batch of matrices."""
    (sets, *_) = call.parts()
    whole = union_over(sets, [-2, -1])
    batch = whole.ids.dim()
    if not math.prod(shape) or shape[:batch] != whole.shape:
        return None
    return whole.reshape([*whole.shape, *[1] * (len(shape) - batch)]).expand(shape)


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


@rule(aten._pdist_forward)
def pdist(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    rows = union_over(sets, [1])
    first, second = torch.triu_indices(sets.shape[0], sets.shape[0], 1)
    ends = [IndexSets(rows.ids[at], rows.table) for at in (first, second)]
    return union(ends, call.shape)
