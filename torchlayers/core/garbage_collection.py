"""Turns Python's garbage collector off, or down, while many objects are created that stay alive."""

import contextlib
import gc
from collections.abc import Callable, Iterator

from torchlayers.core.shared_change import SharedChange


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Turns garbage collection off.

    Captures and differentiated graphs create thousands of nodes, none of them garbage, and each
    collection also visits all of torch's objects. That takes almost half of the time for a graph of
    2,000 nodes, and up to twice the time of a capture. During a capture, functions in gc.callbacks
    would also be mistaken for the captured function's code.
    """
    with _disabled.made():
        yield


@contextlib.contextmanager
def gc_of_young_objects() -> Iterator[None]:
    """Collects new garbage only, and less often.

    A full collection visits all of torch's objects, which takes a tenth of the time of a
    compilation. For longer work than a capture, and where other threads run, since their garbage is
    still collected.
    """
    with _young_only.made():
        yield


def _disable() -> Callable[[], None]:
    was_on = gc.isenabled()
    gc.disable()
    return gc.enable if was_on else lambda: None


def _raise_thresholds() -> Callable[[], None]:
    before = gc.get_threshold()
    gc.set_threshold(10 * before[0], before[1], _NEVER)
    return lambda: gc.set_threshold(*before)


_NEVER = 1_000_000
_disabled = SharedChange(_disable)
_young_only = SharedChange(_raise_thresholds)
