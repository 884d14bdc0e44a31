"""Elements are read or written at indices. Where the indices vary, they may be any."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    spread,
    union,
    union_all,
    united_of_several,
)
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.structural import (
    PLACES,
    places_are_known,
    plain,
    values_moved,
)


@rule("structural")
def moved(call: Call) -> Any:
    """Elements move. Where it depends on the inputs which, any may: of the line, or of all."""
    if places_are_known(call):
        return values_moved(call)
    sets = call.sets("self")
    if sets is not None and "dim" in call.arguments:
        whole = spread(sets, [call["dim"]]) if sets.ids.dim() else sets
        return values_moved(call, {"self": whole})
    return _with_marks(
        call, sets, [x for name in PLACES for x in _listed(call.arguments.get(name))]
    )


def _listed(x: Any) -> list[Any]:
    return [*x] if isinstance(x, (list, tuple)) else [x]


def _with_marks(call: Call, sets: IndexSets | None, places: Sequence[Any]) -> IndexSets:
    """All sets of a tensor in each element of the result, as its places vary."""
    sets_of_places = [part for x in places if (part := call.sets(x)) is not None]
    total = union_all(sets_of_places, call.shape) if sets_of_places else None
    parts = [] if total is None else [call.layer.marked(total)]
    if sets is not None:
        parts.append(union_all([sets], call.shape))
    return union(parts, call.shape)


@rule(aten.embedding)
def embedding(call: Call) -> IndexSets | None:
    sets, places = call.sets("weight"), call.known("indices")
    if sets is None:
        return _with_marks(call, None, [call["indices"]])
    if places is None:
        return spread(sets, [0]).moved(lambda ids: ids[0].expand(call.shape))
    return IndexSets(sets.ids[places], sets.table)


@rule(aten.scatter, aten.index_fill, aten.index_put, aten._unsafe_index_put, aten.masked_scatter)
def written(call: Call) -> IndexSets | None:
    """Some elements are replaced by those of another tensor."""
    if call.arguments.get("reduce") is not None:
        return into_line(call)
    if call.arguments.get("accumulate"):
        return index_put_accumulate(call)
    source = next(name for name in ("src", "value", "values", "source") if name in call.arguments)
    if not places_are_known(call):
        return _anywhere(call, source)
    if call.op.overloadpacket == aten.masked_scatter:
        return values_moved(call)  # type: ignore[no-any-return]
    return _overwritten(call, _targets(call), call.sets(source))


def _targets(call: Call) -> Tensor:
    """For each element that is written, its position in the flattened result."""
    where = positions(call.shape)
    if "indices" in call.arguments:
        return aten.index(where, plain(call["indices"]))  # type: ignore[no-any-return]
    index = plain(call["index"])
    if call.op.overloadpacket in (aten.index_add, aten.index_fill, aten.index_reduce):
        return aten.index_select(where, call["dim"], index.reshape(-1))  # type: ignore[no-any-return]
    return aten.gather(where, call["dim"], index)  # type: ignore[no-any-return]


def _overwritten(call: Call, targets: Tensor, source: IndexSets | None) -> IndexSets | None:
    """Autograd gives each of several elements written to one place a derivative."""
    return accumulated(
        call,
        targets,
        None if source is None else _cut(source, targets.shape),
        _not_overwritten(call, targets),
    )


def _not_overwritten(call: Call, targets: Tensor) -> IndexSets | None:
    """The sets of the elements that are not written to."""
    base = call.sets("self")
    if base is None:
        return None
    is_written = torch.zeros(call.shape.numel(), dtype=torch.bool)
    is_written[targets.reshape(-1)] = True
    return base.expand(call.shape).without(is_written.reshape(call.shape))


def _cut(sets: IndexSets, shape: torch.Size) -> IndexSets:
    """The leading part of a source that is larger than its index."""
    if sets.ids.dim() == len(shape) and all(a >= b for a, b in zip(sets.shape, shape, strict=True)):
        return sets.moved(lambda ids: ids[tuple(slice(n) for n in shape)])
    return sets.expand(shape)


def _anywhere(call: Call, *sources: str) -> IndexSets:
    """Each element keeps its sets, and gets all of the other tensor's: the places vary."""
    parts = call.parts("self")
    rest = [part for name in (*sources, *PLACES) for part in _all_parts(call, name)]
    if rest:
        parts.append(union_all(rest, call.shape))
    return union(parts, call.shape)


def _all_parts(call: Call, name: str) -> list[IndexSets]:
    x = call.arguments.get(name)
    return [part for leaf in _listed(x) if (part := call.sets(leaf)) is not None]


def accumulated(
    call: Call, targets: Tensor, source: IndexSets | None, base: IndexSets | None
) -> IndexSets | None:
    """The base's elements, each with those of the source added whose target it is.

    Args:
        targets: for each element of the source, the position in the flattened result.
    """
    groups, parts = [], []
    if base is not None:
        groups.append(torch.arange(base.ids.numel()))
        parts.append(base.expand(call.shape))
    if source is not None:
        groups.append(targets.expand(source.shape))
        parts.append(source)
    return united_of_several(call.shape, groups, parts) if parts else None


def positions(shape: Sequence[int]) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))


def index_put_accumulate(call: Call) -> IndexSets | None:
    if not places_are_known(call):
        return _anywhere(call, "values")
    targets = _targets(call)
    source = call.sets("values")
    if source is not None:
        source = source.expand(targets.shape)
    return accumulated(call, targets, source, call.sets("self"))


@rule(aten.scatter_add, aten.scatter_reduce, aten.index_add, aten.index_reduce)
def into_line(call: Call) -> IndexSets | None:
    source = next(name for name in ("src", "value", "source") if name in call.arguments)
    if not places_are_known(call):
        return _anywhere(call, source)
    targets, sets = _targets(call), call.sets(source)
    includes_self = call.arguments.get("include_self", True)
    base = call.sets("self") if includes_self else _not_overwritten(call, targets)
    return accumulated(call, targets, None if sets is None else _cut(sets, targets.shape), base)


@rule(aten.put)
def put(call: Call) -> IndexSets | None:
    if not places_are_known(call):
        return _anywhere(call, "source")
    targets = aten.take(positions(call.shape), plain(call["index"]))
    sets = call.sets("source")
    sets = None if sets is None else sets.reshape(targets.shape)
    base = call.sets("self") if call["accumulate"] else _not_overwritten(call, targets)
    return accumulated(call, targets, sets, base)
