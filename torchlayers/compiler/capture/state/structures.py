"""Containers and objects that a function replaces at each call, such as a recurrent state.

What a later call finds in their place has to be alike: the same kinds, sizes and constants.
"""

import collections
import types
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torchlayers.compiler.capture.signature import is_plain
from torchlayers.compiler.capture.state.guarded_place import is_constant
from torchlayers.compiler.capture.state.state_holders import (
    Slots,
    StatePlace,
    is_plain_object,
    is_user_class,
    slots_of,
    unwrapped,
)
from torchlayers.compiler.capture.values.traced_numbers import HostNumber
from torchlayers.core.torch_private import FakeTensor

_SEQUENCES = (tuple, list, collections.deque)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_MAX_DEPTH = 4
_MANY = 1_000  # values
Step = tuple[str, Any]
Path = tuple[Step, ...]


def parts_of(value: Any) -> list[tuple[Step, Any]] | None:
    """Returns the parts of a container or an object, each with the step to it; None for others."""
    kind = type(value)
    if isinstance(value, _SEQUENCES) and (kind in _SEQUENCES or hasattr(kind, "_fields")):
        return [(("item", i), each) for i, each in enumerate(value)]
    if kind in _DICTS and all(map(is_constant, value)):
        makes = getattr(value, "default_factory", None)
        factory = [(("attribute", "default_factory"), makes)] if makes is not None else []
        return [*((("item", key), each) for key, each in value.items()), *factory]
    is_users = is_user_class(kind) or kind is types.SimpleNamespace
    if not (is_users and is_plain_object(value)) or isinstance(value, Module):
        return None
    attributes = {**getattr(value, "__dict__", {}), **Slots(value, slots_of(kind)).now()}
    return [(("attribute", name), member) for name, member in attributes.items()]


def is_leaf(value: Any) -> bool:
    """Whether a value is a constant as a whole; in a tuple, numbers may be others at each call."""
    return is_constant(value) and not isinstance(value, tuple)


def structure_of(value: Any, traced: Collection[Path] = (), path: Path = ()) -> Any:
    """Describes a value but for its tensors and traced numbers, as a constant.

    Args:
        traced: the paths of traced numbers.
        path: where the value is.
    """
    value = unwrapped(value)
    if path in traced or type(value) is HostNumber:
        return "number"
    if is_leaf(value):
        return value
    if isinstance(value, Tensor):
        is_known = isinstance(value, FakeTensor) or is_plain(value)
        return "tensor" if is_known else "another tensor"
    parts = parts_of(value) if len(path) < _MAX_DEPTH else None
    if parts is None or len(parts) > _MANY:
        return value if is_constant(value) else ("object", id(value))
    described = tuple((step, structure_of(part, traced, (*path, step))) for step, part in parts)
    return f"{type(value).__module__}.{type(value).__qualname__}", id(type(value)), described


def walk(value: Any, place: StatePlace, depth: int = 0) -> Iterator[tuple[StatePlace, Any]]:
    """Yields a value and all that it holds, with their places."""
    yield place, value
    parts = parts_of(value) if depth < _MAX_DEPTH and not is_leaf(value) else None
    for step, part in parts or ():
        yield from walk(part, place._replace(path=(*place.path, step)), depth + 1)


def shapes_in(value: Any) -> list[torch.Size]:
    """The shapes of the tensors that a value is, or holds."""
    parts = walk(value, StatePlace("items", {}, ""))
    return [part.shape for _, part in parts if isinstance(part, Tensor)]


class StructureGuard:
    """Returns the structure of what is in a place; keeps the objects alive that it compares."""

    def __init__(self, place: StatePlace, value: Any, traced: Collection[Path]) -> None:
        self._place = place
        self._traced = traced
        leaves = [part for _, part in walk(value, place) if parts_of(part) is None]
        self._alive = [part for part in leaves if not isinstance(part, Tensor)]

    def __call__(self) -> Any:
        return structure_of(self._place.read(), self._traced)
