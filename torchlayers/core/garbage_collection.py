"""Turns Python's garbage collector off, or down, while many objects are created that stay alive."""

import contextlib
import gc
import os
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Turns garbage collection off.

    Captures and differentiated graphs create thousands of nodes, none of them garbage, and each
    collection also visits all of torch's objects. That takes almost half of the time for a graph of
    2,000 nodes, and up to twice the time of a capture. During a capture, functions in gc.callbacks
    would also be mistaken for the captured function's code.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Thresholds:
    """Raises the collector's thresholds from the first thread's entry to the last one's exit."""

    def __init__(self) -> None:
        self.lock, self.inside, self.found = threading.Lock(), 0, gc.get_threshold()

    def enter(self) -> None:
        with self.lock:
            if not self.inside:
                self.found = gc.get_threshold()
                gc.set_threshold(10 * self.found[0], self.found[1], _NEVER)
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            if self.inside == 1:
                gc.set_threshold(*self.found)
            self.inside = max(0, self.inside - 1)

    def forget(self) -> None:
        """For a process that was forked meanwhile, without the threads that are inside."""
        self.lock = threading.Lock()
        if self.inside:
            gc.set_threshold(*self.found)
        self.inside = 0


_NEVER = 1_000_000
_thresholds = _Thresholds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thresholds.forget)


@contextlib.contextmanager
def gc_of_young_objects() -> Iterator[None]:
    """Collects new garbage only, and less often.

    A full collection visits all of torch's objects, which takes a tenth of the time of a
    compilation. For longer work than a capture, and where other threads run, since their garbage is
    still collected.
    """
    _thresholds.enter()
    try:
        yield
    finally:
        _thresholds.leave()
