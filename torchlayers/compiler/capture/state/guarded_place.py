"""A place of Python's state that a captured function has read, as C++ compares it at each call."""

import collections
import enum
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.state.state_holders import ABSENT

_CONSTANTS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


ANY = object()  # in the place of a value that may be any
_HOW = {id(ABSENT): 2, id(ANY): 3}


class GuardedPlace(NamedTuple):
    """A place that a function has read during capture.

    Attributes:
        kind: how C++ reads ``holder``.
        name: of the place in messages, with ``{}`` for a key.
        sizes: for a whole container, its name and that of its contents: ``terms``, ``items``.
    """

    kind: str
    holder: Any
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    name: str
    sizes: tuple[str, str]

    def for_cpp(self) -> tuple[Any, ...]:
        """Returns the arguments for C++; the numbers are those of Expected::How."""
        how = tuple(_HOW.get(id(value), 1 if is_constant(value) else 0) for value in self.values)
        return self.kind, self.holder, self.keys, self.values, how


def is_constant(value: Any) -> bool:
    """Whether equal values of this kind are interchangeable, so that == is the right guard."""
    if isinstance(value, (tuple, frozenset)):
        return type(value).__eq__ in (tuple.__eq__, frozenset.__eq__) and all(
            map(is_constant, value)
        )
    if isinstance(value, enum.Enum):
        return False  # each member exists once
    module = type(value).__module__
    if module.startswith("numpy"):  # which need not be installed
        numpy: Any = sys.modules["numpy"]
        return isinstance(value, (numpy.generic, numpy.dtype))
    return isinstance(value, _CONSTANTS) and module in ("builtins", "torch")


def contents(thing: Any, alive: list[Any] | None) -> Any:
    """Returns the items of a set or deque as a constant; ``alive`` keeps those with an id alive.

    Without it, tensors are all alike.
    """
    described = [
        member
        if is_constant(member)
        else "tensor"
        if alive is None and isinstance(member, Tensor)
        else ("object", id(member))
        for member in thing
    ]
    return tuple(described) if isinstance(thing, collections.deque) else frozenset(described)
