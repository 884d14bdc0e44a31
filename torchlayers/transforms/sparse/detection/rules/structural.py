"""Elements move: views, concatenation, sorting. The ids move as the values do."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core import operator_schema
from torchlayers.core.operators import aten
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.operator_call import keyword_names
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    as_one_table,
    union_all,
    union_last,
)
from torchlayers.transforms.sparse.detection.layer import Call, plain_value, rule

# Arguments that say where elements go, and are not moved themselves.
PLACES = ("condition", "index", "indices", "mask", "offsets")


def values_moved(call: Call, replaced: dict[str, IndexSets | None] | None = None) -> Any:
    """The sets of a result whose elements are elements of the arguments, by running the operator
    on the ids.

    Args:
        replaced: sets to take for some arguments instead of their own.
    """
    names, parts = [], []
    for name, x in call.arguments.items():
        if name in PLACES:
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
    # Not all operators take integers; those on memory take no others.
    takes_integers = operator_schema.is_view(call.op)
    moving = [part.ids if takes_integers else part.ids.double() for part in joined]
    ids = dict(zip(names, moving, strict=True))

    def ids_of(name: str, x: Any) -> Any:
        if name in PLACES:
            return plain(x)
        if name == "value":  # that constant_pad_nd fills with
            return 0
        if isinstance(x, (list, tuple)):
            return [ids.get((name, i), leaf) for i, leaf in enumerate(x)]
        return ids.get((name, 0), x)

    keywords = keyword_names(call.op)
    args = [ids_of(name, x) for name, x in call.arguments.items() if name not in keywords]
    kwargs = {name: ids_of(name, call[name]) for name in keywords if name not in _OF_VALUES}
    moved = call.op(*args, **kwargs)
    if isinstance(moved, Tensor):
        return IndexSets(moved.long(), joined[0].table)
    return [IndexSets(moved_ids.long(), joined[0].table) for moved_ids in moved]


_OF_VALUES = ("dtype", "layout", "device", "pin_memory", "memory_format")


def plain(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [plain(element) for element in x]
    if not isinstance(x, Tensor):
        return x
    value = plain_value(x.value if isinstance(x, LayerTensor) else x)
    # Samples of a vmap have places of their own, so that all places have the same sets.
    return torch.zeros(x.shape, dtype=x.dtype) if value is None else value


def places_are_known(call: Call) -> bool:
    for name in PLACES:
        x = call.arguments.get(name)
        for leaf in x if isinstance(x, (list, tuple)) else [x]:
            if isinstance(leaf, Tensor) and call.known(leaf) is None:
                return False
    return True


def everything(call: Call, *names: str) -> IndexSets:
    """Each element of the result depends on all elements of these arguments, or of all."""
    return union_all(call.parts(*names), call.shape)


@rule(aten.view.default, aten._reshape_alias, aten._unsafe_view)
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
