"""Tensors that a function replaces at each call, such as a moving average: read at the next call.

A captured tensor is guarded by its identity. If the function stores another one in its place, a
later call takes what it finds there, if shape, dtype and the like are the same.
"""

import collections
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.python_state import StatePlace
from torchlayers.compiler.capture.python_writes import OpaqueWrite, PythonWrite, PythonWrites
from torchlayers.compiler.capture.reachable_state import ANY, GuardedPlace, contents, is_constant
from torchlayers.compiler.capture.signature import TensorMetadata, is_plain, tensor_metadata
from torchlayers.compiler.capture.traced_numbers import Expression, TracedNumbers


class CarriedTensor(NamedTuple):
    """A tensor that is read at its places at each call.

    Attributes:
        index: among the captured tensors; None if no operator reads it.
        places: all hold the same tensor.
    """

    index: int | None
    like: TensorMetadata
    places: list[StatePlace]
    name: str

    def now(self) -> Tensor | None:
        """Returns the tensor that is there; None if it does not fit."""
        value = self.places[0].read()
        if not isinstance(value, Tensor) or not is_plain(value):
            return None
        is_like = tensor_metadata(value) == self.like
        return value if is_like and all(p.read() is value for p in self.places[1:]) else None

    def add(self, place: StatePlace) -> None:
        if all(p.holder is not place.holder or p.key != place.key for p in self.places):
            self.places.append(place)

    def put(self, value: Tensor) -> None:
        for place in self.places:
            place.put(value)


class CarriedNumber(NamedTuple):
    """A number that is computed at each call from those that are read.

    Attributes:
        index: among the captured tensors.
    """

    index: int
    expression: Expression
    places: Sequence[StatePlace]
    dtype: torch.dtype
    name = "a number"

    def now(self) -> Tensor | None:
        try:
            number = self.expression.compute([place.read() for place in self.places])
            return torch.tensor(number, dtype=self.dtype)
        except (TypeError, ArithmeticError):
            return None

    def put(self, value: Tensor) -> None:
        """A number stays what it is where a backward is differentiated."""


def tensors_now(
    captured: Sequence[Tensor], carried: Sequence["CarriedTensor | CarriedNumber"]
) -> list[Tensor] | None:
    """Returns the captured tensors of a call; None if one that is carried does not fit."""
    tensors = [*captured]
    for each in carried:
        if (value := each.now()) is None:
            return None
        if each.index is not None:
            tensors[each.index] = value
    return tensors


def carry(
    written: PythonWrites, captured: Sequence[Tensor], guarded: Iterable[GuardedPlace]
) -> tuple[list[GuardedPlace], list["CarriedTensor | CarriedNumber"]]:
    """Finds the tensors that calls replace.

    Returns:
        The guards without these tensors, and the tensors.
    """
    writes = [write for write in written.writes if isinstance(write, PythonWrite)]
    indices = {id(tensor): i for i, tensor in enumerate(captured)}
    found: dict[int, CarriedTensor] = {}
    computed: list[CarriedTensor | CarriedNumber] = []
    for write in writes:
        for key, tensor in _tensors_before(write):
            like = tensor_metadata(tensor)
            name = write.holder.path(key)
            new = CarriedTensor(indices.get(id(tensor)), like, [], name)
            each = found.setdefault(id(tensor), new)
            if each.index is not None:
                each.add(write.holder.place(key))
    numbers = written.numbers
    if numbers is not None:
        for tensor, expression in numbers.tensors:
            if id(tensor) in indices:
                each = CarriedNumber(indices[id(tensor)], expression, numbers.places, tensor.dtype)
                computed.append(each)
    added_to = {id(write.holder.holder) for write in writes if write.only_added}
    changed = {id(write.holder.holder) for write in writes}
    places = [
        released
        for place in guarded
        for released in _without_carried(place, found, added_to, changed)
    ]
    if numbers is not None:
        places = [*_without_numbers(places, numbers)]
    return places, [*computed, *(each for each in found.values() if each.places)]


def _tensors_before(write: PythonWrite) -> Iterator[tuple[Any, Tensor]]:
    """Yields the tensors that a write may replace, or move, with their keys."""
    if write.only_added:
        return
    keys = [write.key] if write.kind == "set" else [*write.holder.before]
    for key in keys:
        value = write.holder.before.get(key)
        if isinstance(value, Tensor) and is_plain(value):
            yield key, value


def _without_carried(
    place: GuardedPlace, carried: dict[int, CarriedTensor], added_to: set[int], changed: set[int]
) -> Iterator[GuardedPlace]:
    """Yields the guards of a place but for the tensors that are carried, to which it is added."""
    items = _container(place)
    if id(items) in added_to:
        constant = [pair for pair in _pairs(place) if is_constant(pair[1])]
        if place.kind == "whole" and constant:
            keys, values = zip(*constant, strict=True)
            yield place._replace(kind="items", keys=keys, values=values)
        return
    if items is not place.holder and id(items) in changed:  # a set or a deque
        now = functools.partial(contents, items, None)
        yield place._replace(holder=now, values=(now(),))
        for key, value in enumerate(items):
            if id(value) in carried and isinstance(items, collections.deque):
                carried[id(value)].add(StatePlace("list", items, key))
        return
    values = []
    for key, value in _pairs(place):
        if id(value) in carried:
            kind = "items" if place.kind == "whole" else place.kind
            carried[id(value)].add(StatePlace(kind, place.holder, key))
        values.append(ANY if id(value) in carried else value)
    if place.kind != "asked" or ANY not in values:
        yield place._replace(values=tuple(values))


def _without_numbers(places: Iterable[GuardedPlace], numbers: TracedNumbers) -> Iterator[GuardedPlace]:
    """Yields the guards without those of traced numbers, and one of what was asked of these."""
    traced = {(id(place.holder), place.key) for place in numbers.places}
    for place in places:
        values = [
            ANY if (id(_container(place)), key) in traced else value for key, value in _pairs(place)
        ]
        yield place._replace(values=tuple(values))
    yield GuardedPlace("asked", numbers.hold, (), (numbers.hold(),), "what a number decides", ("", ""))


def _container(place: GuardedPlace) -> Any:
    """Returns the container that a guard is about: of a set or a deque, its contents are asked."""
    holder = place.holder
    is_asked = isinstance(holder, functools.partial) and holder.func is contents
    return holder.args[0] if is_asked else holder


def _pairs(place: GuardedPlace) -> Iterator[tuple[Any, Any]]:
    keys = ("",) if place.kind == "cell" else place.keys or range(len(place.values))
    return zip(keys, place.values, strict=True)


def lost_writes(
    written: PythonWrites, guarded: Sequence[GuardedPlace]
) -> list[PythonWrite | OpaqueWrite]:
    """Returns the writes after which the guards no longer hold: the next call is captured."""
    by_key = {
        (id(place.holder), key)
        for place in guarded
        for key, value in _pairs(place)
        if value is not ANY
    }
    if (numbers := written.numbers) is not None:
        fixed = [numbers.places[i] for i in numbers.fixed]
        by_key.update((id(place.holder), place.key) for place in fixed)
    kinds = ("list", "whole", "asked")
    whole = {id(_container(place)) for place in guarded if place.kind in kinds}
    return [
        write
        for write in written.writes
        if isinstance(write, OpaqueWrite)
        or write.place in by_key
        or (id(write.holder.holder) in whole and write.resizes)
    ]
