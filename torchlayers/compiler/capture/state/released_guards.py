"""Releases the guards of what a function replaces at each call, which would fail at the next."""

import collections
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchlayers.compiler.capture.signature import is_plain, tensor_metadata
from torchlayers.compiler.capture.state.carried_tensors import CarriedNumber, CarriedTensor
from torchlayers.compiler.capture.state.growing_containers import item, length
from torchlayers.compiler.capture.state.guarded_place import (
    ANY,
    GuardedPlace,
    contents,
    is_constant,
)
from torchlayers.compiler.capture.state.numpy_arrays import element
from torchlayers.compiler.capture.state.python_writes import (
    AnyWrite,
    OpaqueWrite,
    PythonWrite,
    PythonWrites,
)
from torchlayers.compiler.capture.state.state_holders import ABSENT, StatePlace
from torchlayers.compiler.capture.state.structures import StructureGuard, is_leaf, parts_of, walk
from torchlayers.compiler.capture.values.traced_numbers import Expression
from torchlayers.compiler.capture.values.traced_state import TracedNumbers

_READS = (element, item, length)
Place = tuple[int, Any]  # the id of a holder, and a key


class ReleasedGuards(NamedTuple):
    """The guards that are left.

    Attributes:
        carried: the captured tensors that are read at each call.
        lost: the writes after which a guard fails, so that the next call is captured.
        found_at: by id, where calls find what the function changes inside what it replaces.
    """

    places: list[GuardedPlace]
    carried: list[CarriedTensor | CarriedNumber]
    lost: list[AnyWrite]
    found_at: Mapping[int, StatePlace]


def release_guards(
    written: PythonWrites,
    captured: Sequence[Tensor],
    guarded: Sequence[GuardedPlace],
    replaced: Collection[Place],
    constants: Collection[int],
    any_read: bool,
) -> ReleasedGuards:
    """Releases the guards of one capture.

    Args:
        captured: the tensors that the function captured.
        replaced: places that earlier captures of the function write to.
        constants: the ids of objects that are results.
        any_read: whether the graph is split, so that a part may need a number that is drawn last.
    """
    releasing = _Releasing(written, captured, guarded, replaced, constants, any_read)
    places = [left for place in guarded for left in releasing.release(place)]
    if (numbers := written.numbers) is not None:
        decisions = (numbers.hold(),)
        places.append(
            GuardedPlace("asked", numbers.hold, (), decisions, "what numbers decide", ("", ""))
        )
    places += releasing.structures
    lost = _lost(written, places, releasing.lost)
    return ReleasedGuards(places, releasing.carried(), lost, releasing.found_at)


class _Releasing:
    def __init__(
        self,
        written: PythonWrites,
        captured: Sequence[Tensor],
        guarded: Sequence[GuardedPlace],
        replaced: Collection[Place],
        constants: Collection[int],
        any_read: bool,
    ) -> None:
        self._guarded = guarded
        self._any_read = any_read
        self._writes = [write for write in written.writes if isinstance(write, PythonWrite)]
        self._numbers = written.numbers
        self._indices = {id(tensor): i for i, tensor in enumerate(captured)}
        self._added_to = {id(w.holder.holder) for w in self._writes if w.only_added}
        self._changed = {id(w.holder.holder) for w in self._writes}
        self._replaced = {*replaced, *(write.place for write in self._writes)}
        self._sizes = written.sizes
        traced = [*(self._numbers.places if self._numbers is not None else ())]
        traced += [place for place, _ in written.sizes]
        self._traced = {(id(place.holder), place.key) for place in traced if not place.path}
        self._constants = {*constants, *written.existing}
        self._carried: dict[int, CarriedTensor] = {}
        self._inside: set[int] = set()  # the ids of holders inside replaced containers and objects
        self._parts: dict[Place, tuple[str, list[tuple[StatePlace, Any]]]] = {}
        self.structures: list[GuardedPlace] = []
        self.found_at: dict[int, StatePlace] = {}
        self.lost = set[Place]()  # where another structure is stored than was found
        self._growing = {id(part.original) for part in written.growing}
        others = [write for write in self._writes if not write.only_added]
        for write in others:
            self._look_at(write, tensors=False)
        for write in others:
            if id(write.holder.holder) not in self.found_at:  # those are in what is replaced
                self._look_at(write, tensors=True)
        for part in written.growing:
            for place, tensor in part.tensors:
                self._carry(tensor, place, part.holder.path(place.key), True)

    def carried(self) -> list[CarriedTensor | CarriedNumber]:
        carried: list[CarriedTensor | CarriedNumber] = [
            part for part in self._carried.values() if part.places
        ]
        carried += [
            CarriedNumber(
                self._indices[id(tensor)],
                Expression(None, (0,)),
                TracedNumbers([place]),
                tensor.dtype,
                is_size=True,
            )
            for place, tensor in self._sizes
        ]
        if (numbers := self._numbers) is not None:
            carried += [
                CarriedNumber(
                    self._indices[id(tensor)],
                    number,
                    numbers,
                    tensor.dtype,
                    numbers.drawn_for(number),
                )
                for tensor, number in numbers.tensors
                if id(tensor) in self._indices
                if self._any_read or not numbers.is_drawn(number)
            ]
        return carried

    def _look_at(self, write: PythonWrite, tensors: bool) -> None:
        """Carries the tensors that a write replaces or moves, or those in containers."""
        holder = write.holder
        for key in [write.key] if write.kind == "set" else [*holder.before]:
            value, place = holder.before.get(key, ABSENT), holder.place(key)
            if tensors and isinstance(value, Tensor):
                self._carry(value, place, holder.path(key), id(value) in self._indices)
            elif not tensors and write.kind == "set":
                self._carry_parts(value, place, holder.path(key))

    def _carry(self, tensor: Tensor, place: StatePlace, name: str, is_read: bool) -> None:
        if not is_plain(tensor):
            return
        new = CarriedTensor(self._indices.get(id(tensor)), tensor_metadata(tensor), [], name)
        part = self._carried.setdefault(id(tensor), new)
        if is_read:
            part.add(place)

    def _carry_parts(self, value: Any, place: StatePlace, name: str) -> None:
        """Carries the tensors of a container or an object that is replaced."""
        if is_leaf(value) or parts_of(value) is None or id(value) in self._inside:
            return
        parts = [*walk(value, place)]
        holders = {
            id(held): at
            for at, part in parts
            for held in (part, getattr(part, "__dict__", None))
            if held is not None
        }
        known = {id(part) for _, part in parts if parts_of(part) is not None}
        changed = holders.keys() & self._changed
        if known & self._constants or (changed and self._is_elsewhere(known, holders, place)):
            return
        self.found_at |= {part: holders[part] for part in changed}
        self._inside |= holders.keys()
        self._parts[id(place.holder), place.key] = name, parts
        for inner, part in parts:
            if isinstance(part, Tensor):
                self._carry(part, inner, name, id(part) in self._indices)

    def _is_elsewhere(self, known: set[int], holders: Collection[int], place: StatePlace) -> bool:
        """Whether a guard finds any of these objects in another place, too."""
        return any(
            id(value) in known and (guard.holder is not place.holder or key != place.key)
            for guard in self._guarded
            if id(guard.holder) not in holders
            for key, value in _pairs(guard)
        )

    def release(self, place: GuardedPlace) -> Iterator[GuardedPlace]:
        """Yields what is left of a guard."""
        items = container_of(place)
        if id(items) in self._growing and place.kind != "items":
            return
        if id(items) in self._added_to - self._growing:
            constant = [pair for pair in _pairs(place) if is_constant(pair[1])]
            if place.kind == "whole" and constant:
                keys, values = zip(*constant, strict=True)
                yield place._replace(kind="items", keys=keys, values=values)
        elif id(items) in self._inside:
            return
        elif items is not place.holder and id(items) in self._changed:  # a set or a deque
            now = functools.partial(contents, items, None)
            yield place._replace(holder=now, values=(now(),))
            for key, value in enumerate(items):
                if id(value) in self._carried and isinstance(items, collections.deque):
                    self._carried[id(value)].add(StatePlace("list", items, key))
        else:
            values = tuple(self._expected(place, key, value) for key, value in _pairs(place))
            if place.kind != "asked" or ANY not in values:
                yield place._replace(values=values)

    def _expected(self, place: GuardedPlace, key: Any, value: Any) -> Any:
        """Returns what a guard still expects of a value."""
        at = id(place.holder), key
        now = StatePlace("items" if place.kind == "whole" else place.kind, place.holder, key)
        if at in self._replaced and isinstance(value, Tensor):
            self._carry(value, now, place.name.format(key), False)
        if id(value) in self._carried:
            self._carried[id(value)].add(now)
            return ANY
        if at in self._parts and id(value) in self._inside:
            self._guard_structure(*self._parts.pop(at))
            return ANY
        return ANY if at in self._traced else value

    def _guard_structure(self, name: str, parts: list[tuple[StatePlace, Any]]) -> None:
        for inner, part in parts:
            if id(part) in self._carried:
                self._carried[id(part)].add(inner)
        traced = self._numbers.places if self._numbers is not None else ()
        paths = [part.path for part in traced if part[:3] == parts[0][0][:3]]
        guard = StructureGuard(*parts[0], paths)
        structure = guard()
        self.structures.append(
            GuardedPlace("asked", guard, (), (structure,), f"the structure of {name}", ("", ""))
        )
        self.lost |= {
            write.place
            for write in self._writes
            if write.place == (id(parts[0][0].holder), parts[0][0].key)
            and write.structure != structure
        }


def container_of(place: GuardedPlace) -> Any:
    """Returns the container that a guard is about: of a set or a deque, its contents are asked."""
    holder = place.holder
    is_asked = isinstance(holder, functools.partial) and holder.func is contents
    return holder.args[0] if is_asked else holder


def _pairs(place: GuardedPlace) -> Iterator[tuple[Any, Any]]:
    keys = ("",) if place.kind == "cell" else place.keys or range(len(place.values))
    return zip(keys, place.values, strict=True)


def _lost(
    written: PythonWrites, guarded: Sequence[GuardedPlace], lost: set[Place]
) -> list[AnyWrite]:
    draws: list[AnyWrite] = []
    by_key = lost | {
        (id(place.holder), key)
        for place in guarded
        for key, value in _pairs(place)
        if value is not ANY
    }
    if (numbers := written.numbers) is not None:
        fixed = [numbers.places[i] for i in numbers.fixed if i < len(numbers.places)]
        by_key.update((id(place.holder), place.key) for place in fixed)
        drawn = [i for i in numbers.fixed if i >= len(numbers.places)]
        performed = [numbers.draws.performed[i - len(numbers.places)] for i in drawn]
        by_key.update((id(draw.args[0]), None) for draw in performed if draw.function in _READS)
        may_settle = not any(isinstance(numbers.values[i], float) for i in drawn)
        draws = [OpaqueWrite(g, None, None, may_settle) for g in numbers.generators if drawn]
    kinds = ("list", "whole", "asked")
    whole = {id(container_of(place)) for place in guarded if place.kind in kinds}

    def fails(write: AnyWrite) -> bool:
        """Whether a guard fails after a write."""
        if isinstance(write, OpaqueWrite) or write.place in by_key:
            return True
        if not isinstance(write, PythonWrite):
            return False
        return write.reshapes or (id(write.holder.holder) in whole and write.resizes)

    return draws + [write for write in written.writes if written.once or fails(write)]
