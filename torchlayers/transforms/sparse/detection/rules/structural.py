"""Elements move: views, indexing, joining, padding. The ids move as the values do."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    as_one_table,
    spread,
    union,
    union_all,
    union_last,
    union_over,
    united_of_several,
)
from torchlayers.transforms.sparse.detection.layer import Call, broadcast_shapes, plain_value, rule

aten: Any = torch.ops.aten

# Arguments that say where elements go, and are not moved themselves.
_PLACES = ("condition", "index", "indices", "mask", "offsets")


def values_moved(call: Call, replaced: dict[str, IndexSets | None] | None = None) -> Any:
    """The sets of a result whose elements are elements of the arguments, by running the operator
    on the ids.

    Args:
        replaced: sets to take for some arguments instead of their own.
    """
    names, parts = [], []
    for name, x in call.arguments.items():
        if name in _PLACES:
            continue
        for i, leaf in enumerate(x if isinstance(x, (list, tuple)) else [x]):
            if isinstance(leaf, Tensor):
                sets = (replaced or {}).get(name) or call.sets(leaf)
                if sets is None:
                    none = torch.zeros(leaf.shape, dtype=torch.int64)
                    sets = IndexSets(none, call.layer.table)
                names.append((name, i))
                parts.append(sets)
    joined = as_one_table(parts)
    ids = dict(zip(names, (part.ids for part in joined), strict=True))

    def given(name: str, x: Any) -> Any:
        if name in _PLACES:
            return _plain(x)
        if isinstance(x, (list, tuple)):
            return [ids.get((name, i), leaf) for i, leaf in enumerate(x)]
        return ids.get((name, 0), x)

    keywords = {a.name for a in call.op._schema.arguments if a.kwarg_only}
    args = [given(name, x) for name, x in call.arguments.items() if name not in keywords]
    kwargs = {name: given(name, call[name]) for name in keywords if name not in _OF_VALUES}
    moved = call.op(*args, **kwargs)
    if isinstance(moved, Tensor):
        return IndexSets(moved, joined[0].table)
    return [IndexSets(each, joined[0].table) for each in moved]


_OF_VALUES = ("dtype", "layout", "device", "pin_memory", "memory_format")


def _plain(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_plain(each) for each in x]
    if not isinstance(x, Tensor):
        return x
    return plain_value(x.value if isinstance(x, LayerTensor) else x)


def places_are_known(call: Call) -> bool:
    for name in _PLACES:
        x = call.arguments.get(name)
        for leaf in x if isinstance(x, (list, tuple)) else [x]:
            if isinstance(leaf, Tensor) and call.known(leaf) is None:
                return False
    return True


def everything(call: Call, *names: str) -> IndexSets:
    """Each element of the result depends on all elements of these arguments, or of all."""
    return union_all(call.parts(*names), call.shape)


def all_of(call: Call, x: Any) -> IndexSets | None:
    sets = call.sets(x)
    return None if sets is None else spread(sets, range(sets.ids.dim()))


@rule(
    "structural",
    aten.block_diag,
    aten.channel_shuffle,
    aten.diag_embed,
    aten.diagonal_backward,
    aten.lift_fresh,
    aten.lift,
    aten.pixel_shuffle,
    aten.pixel_unshuffle,
    aten.rot90,
    aten.select_backward,
    aten.slice_backward,
    aten.tril,
    aten.triu,
    aten.unsafe_split,
    aten.unsafe_split_with_sizes,
)
def moved(call: Call) -> Any:
    return values_moved(call)


@rule(aten.clone, aten.alias)
def same(call: Call) -> IndexSets | None:
    return call.sets("self")


@rule(aten.copy)
def copy(call: Call) -> IndexSets | None:
    sets = call.sets("src")
    return None if sets is None else sets.expand(call.shape)


@rule(aten.fill.Tensor)
def fill(call: Call) -> IndexSets | None:
    sets = call.sets("value")
    return None if sets is None else sets.expand(call.shape)


@rule(aten.view.default, aten._unsafe_view, aten._reshape_alias, aten._reshape_copy)
def reshaped(call: Call) -> IndexSets | None:
    sets = call.sets("self")
    return None if sets is None else sets.reshape(call.shape)


@rule(aten.view.dtype)
def reinterpreted(call: Call) -> IndexSets | None:
    return everything(call)


@rule(aten.view_as_real)
def view_as_real(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    return IndexSets(sets.ids.unsqueeze(-1).expand(call.shape), sets.table)


@rule(aten.view_as_complex)
def view_as_complex(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    return union_last(sets)


@rule(aten.as_strided)
def as_strided(call: Call) -> IndexSets | None:
    x, sets = call["self"].value, call.sets("self")
    assert sets is not None
    offset = call["storage_offset"]
    start = 0 if offset is None else offset - x.storage_offset()
    steps = [(n - 1) * s for n, s in zip(call["size"], call["stride"], strict=True)]
    extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    if not x.numel() or start < 0 or start + sum(steps) >= extent:
        return everything(call)
    memory = torch.zeros(extent, dtype=torch.int64)
    memory.as_strided(x.shape, x.stride()).copy_(sets.ids)
    return IndexSets(memory.as_strided(call["size"], call["stride"], start), sets.table)


@rule(aten.as_strided_scatter)
def as_strided_scatter(call: Call) -> IndexSets | None:
    """The strides are those of a contiguous result."""
    sizes, strides = call["size"], call["stride"]
    offset = call["storage_offset"] or 0
    if not call["self"].value.is_contiguous():
        return everything(call)
    targets = positions(call.shape).as_strided(sizes, strides, offset)
    return _overwritten(call, targets, call.sets("src"))


@rule(aten.slice_inverse)
def slice_inverse(call: Call) -> IndexSets | None:
    return everything(call)


@rule(aten.constant_pad_nd)
def constant_pad_nd(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    return IndexSets(aten.constant_pad_nd(sets.ids, call["pad"], 0), sets.table)


def along_line(call: Call) -> IndexSets | None:
    """Indexing along a dimension, or anywhere in a tensor (take)."""
    if places_are_known(call):
        return values_moved(call)  # type: ignore[no-any-return]
    sets = call.sets("self")
    if sets is None:
        return call.layer.marked(union_all([call.sets("index")], call.shape))  # type: ignore[list-item]
    whole = _spread_along(sets, call.arguments.get("dim"))
    return values_moved(call, {"self": whole})  # type: ignore[no-any-return]


def _spread_along(sets: IndexSets, dim: int | None) -> IndexSets:
    if not sets.ids.dim():
        return sets
    return spread(sets, range(sets.ids.dim()) if dim is None else [dim])


rule(aten.gather, aten.index_select, aten.take)(along_line)


@rule(aten.index, aten._unsafe_index)
def index(call: Call) -> IndexSets | None:
    if places_are_known(call):
        return values_moved(call)  # type: ignore[no-any-return]
    return _with_marks(call, all_of(call, "self"), call["indices"])


def _with_marks(call: Call, sets: IndexSets | None, places: Sequence[Any]) -> IndexSets:
    """All sets of a tensor in each element of the result, as its places vary."""
    found = [part for x in places if (part := call.sets(x)) is not None]
    total = union_all(found, call.shape) if found else None
    parts = [] if total is None else [call.layer.marked(total)]
    if sets is not None:
        parts.append(union_all([sets], call.shape))
    return union(parts, call.shape)


@rule(aten._unsafe_masked_index)
def unsafe_masked_index(call: Call) -> IndexSets | None:
    return _with_marks(call, call.sets("self"), [call["mask"], *call["indices"]])


@rule(aten.masked_select)
def masked_select(call: Call) -> IndexSets | None:
    sets, mask = call.sets("self"), call.known("mask")
    if mask is None:
        return _with_marks(call, sets, [call["mask"]])
    if sets is None:
        return None
    shape = broadcast_shapes(sets.shape, mask.shape)
    return IndexSets(sets.ids.expand(shape).masked_select(mask), sets.table)


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
    if call.op.overloadpacket is aten.masked_scatter:
        return values_moved(call)  # type: ignore[no-any-return]
    return _overwritten(call, _targets(call), call.sets(source))


def _targets(call: Call) -> Tensor:
    """For each element that is written, its position in the flattened result."""
    where = positions(call.shape)
    if "indices" in call.arguments:
        return aten.index(where, _plain(call["indices"]))  # type: ignore[no-any-return]
    index = _plain(call["index"])
    if call.op.overloadpacket in (aten.index_add, aten.index_fill, aten.index_reduce):
        return aten.index_select(where, call["dim"], index.reshape(-1))  # type: ignore[no-any-return]
    return aten.gather(where, call["dim"], index)  # type: ignore[no-any-return]


def _overwritten(call: Call, targets: Tensor, source: IndexSets | None) -> IndexSets | None:
    """Autograd gives each of several elements written to one place a derivative."""
    return accumulated(
        call,
        targets,
        None if source is None else _cut(source, targets.shape),
        _kept(call, targets),
    )


def _kept(call: Call, targets: Tensor) -> IndexSets | None:
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
    rest = [part for name in (*sources, *_PLACES) for part in _all_parts(call, name)]
    if rest:
        parts.append(union_all(rest, call.shape))
    return union(parts, call.shape)


def _all_parts(call: Call, name: str) -> list[IndexSets]:
    x = call.arguments.get(name)
    leaves = x if isinstance(x, (list, tuple)) else [x]
    return [part for leaf in leaves if (part := call.sets(leaf)) is not None]


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
    base = call.sets("self") if includes_self else _kept(call, targets)
    return accumulated(call, targets, None if sets is None else _cut(sets, targets.shape), base)


@rule(aten.put)
def put(call: Call) -> IndexSets | None:
    if not places_are_known(call):
        return _anywhere(call, "source")
    targets = aten.take(positions(call.shape), _plain(call["index"]))
    sets = call.sets("source")
    sets = None if sets is None else sets.reshape(targets.shape)
    base = call.sets("self") if call["accumulate"] else _kept(call, targets)
    return accumulated(call, targets, sets, base)


@rule(aten.max_unpool2d, aten.max_unpool3d)
def max_unpool(call: Call) -> IndexSets | None:
    if not places_are_known(call):
        return everything(call)
    index, sets = _plain(call["indices"]), call.sets("self")
    ndim = len(call["output_size"])
    plane = call.shape[-ndim:].numel()
    flat = index.reshape(-1, index.shape[-ndim:].numel())
    targets = flat + torch.arange(flat.shape[0]).unsqueeze(1) * plane
    return accumulated(call, targets.reshape(index.shape), sets, None)


@rule(aten.embedding_dense_backward)
def embedding_dense_backward(call: Call) -> IndexSets | None:
    places, sets = call.known("indices"), call.sets("grad_output")
    if places is None or sets is None:
        return everything(call)
    if call["padding_idx"] >= 0:
        sets = sets.without((places == call["padding_idx"]).unsqueeze(-1))
    if call["scale_grad_by_freq"]:
        pass  # a factor for each row
    return accumulated(call, positions(call.shape)[places], sets, None)


@rule(aten.unfold_backward)
def unfold_backward(call: Call) -> IndexSets | None:
    targets = positions(call.shape).unfold(call["dim"], call["size"], call["step"])
    return accumulated(call, targets, call.sets("grad_in"), None)


def _padded(call: Call) -> IndexSets | None:
    """Copies of elements, chosen by the operator run on the ids as numbers of float64."""
    (sets,) = call.parts()
    keywords: dict[str, Any] = {}
    args = [sets.ids.double() if x is call["self"] else x for name, x in call.arguments.items()]
    return IndexSets(call.op(*args, **keywords).round().long(), sets.table)


rule(
    aten.reflection_pad1d,
    aten.reflection_pad2d,
    aten.reflection_pad3d,
    aten.replication_pad1d,
    aten.replication_pad2d,
    aten.replication_pad3d,
    aten.im2col,
    aten.upsample_nearest1d,
    aten.upsample_nearest2d,
    aten.upsample_nearest3d,
    aten._upsample_nearest_exact1d,
    aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d,
)(_padded)


def _adjoint_of(forward: Callable[..., Tensor], *names: str) -> Callable[[Call], Any]:
    """The rule of the transpose of an operator that copies elements."""

    def define(call: Call) -> IndexSets | None:
        numbers = positions(call.shape).double()
        given = [call[name] for name in names]
        targets = forward(numbers, *given)
        sets = call.sets("grad_output") or call.sets("self")
        if sets is None:
            return None
        # Where the forward operator pads with zeros, nothing is added.
        if forward is aten.im2col:
            targets = forward(numbers + 1, *given) - 1
            sets = sets.without(targets.reshape(sets.shape) < 0)
            targets = targets.clamp_min(0)
        return accumulated(call, targets.round().long().reshape(sets.shape), sets, None)

    return define


for _name in ("reflection_pad", "replication_pad"):
    for _dims in ("1d", "2d", "3d"):
        _forward = functools.partial(getattr(aten, _name + _dims))
        rule(getattr(aten, f"{_name}{_dims}_backward"))(_adjoint_of(_forward, "padding"))


@rule(aten.col2im)
def col2im(call: Call) -> IndexSets | None:
    sets = call.sets("self")
    assert sets is not None
    options = [call[name] for name in ("kernel_size", "dilation", "padding", "stride")]
    targets = aten.im2col(positions(call.shape).double() + 1, *options).round().long() - 1
    sets = sets.without(targets < 0)
    return accumulated(call, targets.clamp_min(0), sets, None)


@rule(aten.trace)
def trace(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    return union_last(sets.moved(torch.diagonal))


@rule(aten.renorm)
def renorm(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    dim = call["dim"] % sets.ids.dim()
    return spread(sets, [d for d in range(sets.ids.dim()) if d != dim])


@rule(aten.linalg_cross)
def linalg_cross(call: Call) -> IndexSets | None:
    dim = call["dim"]
    parts = []
    for name in ("self", "other"):
        sets = call.sets(name)
        if sets is not None:
            sets = sets.expand(call.shape)
            parts += [IndexSets(sets.ids.roll(k, dim), sets.table) for k in (1, 2)]
    return union(parts, call.shape)


@rule(aten.repeat, aten.flip, aten.roll)
def by_running(call: Call) -> Any:
    return values_moved(call)


@rule(aten.glu)
def glu(call: Call) -> IndexSets | None:
    (sets,) = call.parts()
    halves = sets.ids.chunk(2, call["dim"])
    return union([IndexSets(half, sets.table) for half in halves], call.shape)


@rule(aten.sort, aten.topk, aten.kthvalue, aten.mode, aten.median.dim, aten.nanmedian.dim)
def ordered(call: Call) -> Any:
    """Elements move by their values: anywhere along the dimension."""
    (sets,) = call.parts()
    dim = call["dim"]
    values, places = call.value
    if not sets.ids.dim():
        return sets, sets
    if call.layer.is_local:
        chosen = plain_value(places)
        if chosen is not None:
            keeps = chosen.dim() == sets.ids.dim()
            index = chosen if keeps else chosen.unsqueeze(dim)
            ids = sets.ids.gather(dim, index)
            return IndexSets(ids if keeps else ids.squeeze(dim), sets.table), None
    keeps = values.dim() == sets.ids.dim()
    lines = union_over(sets, [dim], keepdim=keeps)
    result = lines.expand(values.shape)
    return result, result
