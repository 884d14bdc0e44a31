"""Changes to state of the process, such as torch's modules, that several threads need at a time."""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class SharedChange:
    """A change that the first thread to enter makes, and the last one to leave undoes.

    Threads may leave in any order: none of them restores what another one has changed.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        """``make`` makes the change, and returns the function that undoes it."""
        self._make = make
        self._undo: Callable[[], None] = _nothing
        self._lock, self._inside = threading.Lock(), 0
        _all.add(self)

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Inside, the change is made."""
        with self._lock:
            if self._inside == 0:
                self._undo = self._make()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                if self._inside == 1:
                    self._undo()
                self._inside = max(0, self._inside - 1)

    def undo_in_fork(self) -> None:
        """For a process that was forked meanwhile, without the threads that are inside."""
        self._lock = threading.Lock()
        if self._inside:
            self._undo()
        self._inside = 0


def replace_attributes(replacements: Sequence[tuple[Any, str, Any]]) -> Callable[[], None]:
    """Sets attributes: (object, name, value). Returns the function that sets them back."""
    before = [
        (holder, name, vars(holder).get(name, _INHERITED)) for holder, name, _ in replacements
    ]
    _set_attributes(replacements)
    return lambda: _set_attributes(before)


def _set_attributes(values: Sequence[tuple[Any, str, Any]]) -> None:
    for holder, name, value in values:
        if value is _INHERITED:
            delattr(holder, name)
        else:
            setattr(holder, name, value)


_INHERITED = object()  # the value of an attribute that an object has of its class, or a base


def _nothing() -> None:
    pass


def _undo_all_in_fork() -> None:
    for change in [*_all]:
        change.undo_in_fork()


_all: "weakref.WeakSet[SharedChange]" = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_undo_all_in_fork)
