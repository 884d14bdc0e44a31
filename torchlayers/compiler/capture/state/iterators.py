"""Iterators that a function advances: what a capture takes from one, the call itself finds again.

An iterator can't be put back. So a stand-in takes its place during a capture, and the values that
it passes on stay there for the rest of the call: for another capture, for the draws before the
graph runs (draws.py), and for the function if it runs uncompiled in the end.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchlayers.compiler.capture.state.state_holders import StandIn, StatePlace, holds_fake


class TakenValues:
    """What one call has taken from an iterator.

    Attributes:
        places: where the function finds the iterator.
        position: how many of the values the draws of the call have used.
    """

    def __init__(self, iterator: Any, places: Sequence[StatePlace]) -> None:
        self.iterator = iterator
        self.places = places
        self.position = 0
        self.values: list[Any] = []

    def value(self, index: int) -> Any:
        """Returns the value of this index, and advances the iterator if it is the next one."""
        if index == len(self.values):
            self.values.append(next(self.iterator))
        return self.values[index]


class IteratorStandIn(StandIn):
    """Passes on what a call has taken from an iterator, and then further values.

    Args:
        note: returns what takes the place of a value, if not the value itself.
    """

    def __init__(
        self, taken: TakenValues, note: Callable[[Any], Any] = lambda value: value
    ) -> None:
        super().__init__(taken.iterator)
        self.taken = taken
        self.count = 0
        self._note = note

    def __iter__(self) -> "IteratorStandIn":
        return self

    def __next__(self) -> Any:
        value = self.taken.value(self.count)
        self.count += 1
        return self._note(value)


class _Thread(threading.local):
    taken: dict[int, TakenValues] | None = None  # of the call of this thread


_thread = _Thread()


@contextlib.contextmanager
def values_shared() -> Iterator[None]:
    """Inside, captures, draws and the function itself find the same values of iterators."""
    outer = _thread.taken
    _thread.taken = {} if outer is None else outer
    try:
        yield
    finally:
        _thread.taken = outer


def taken_from(iterator: Any, places: Sequence[StatePlace]) -> TakenValues:
    """Returns what this call has taken from an iterator in these places, to which it may add."""
    taken = {} if _thread.taken is None else _thread.taken
    return taken.setdefault(id(iterator), TakenValues(iterator, places))


def advance(iterator: Any, places: Sequence[StatePlace]) -> Any:
    """Returns the next value of an iterator in these places for a draw of this call."""
    if _thread.taken is None:
        return next(iterator)
    taken = taken_from(iterator, places)
    value = taken.value(taken.position)
    taken.position += 1
    return value


@contextlib.contextmanager
def values_found_again() -> Iterator[None]:
    """Inside, the function finds the values that this call has taken from iterators."""
    put = []
    try:
        for taken in [*(_thread.taken or {}).values()]:
            if any(map(holds_fake, taken.values)):
                continue
            stand_in = IteratorStandIn(taken)
            for place in taken.places:
                if place.read() is taken.iterator:
                    place.put(stand_in)
                    put.append((place, stand_in))
        yield
    finally:
        for place, stand_in in put:
            if place.read() is stand_in:
                place.put(stand_in.original)
