"""How captures on this thread treat control flow: as operators, or as Python would run it."""

import contextlib
import threading
from collections.abc import Iterator


class _Thread(threading.local):
    is_unrolling = False
    reads_predicates = False


_thread = _Thread()


def are_loops_unrolled() -> bool:
    """Whether this thread is inside :func:`loops_unrolled` or :func:`predicates_read`."""
    return _thread.is_unrolling


def are_predicates_read() -> bool:
    """Whether this thread is inside :func:`predicates_read`."""
    return _thread.reads_predicates


@contextlib.contextmanager
def loops_unrolled() -> Iterator[None]:
    """Inside, a loop's step numbers are Python ints, and ``x[i]`` is a view in the graph, too."""
    before, _thread.is_unrolling = _thread.is_unrolling, True
    try:
        yield
    finally:
        _thread.is_unrolling = before


@contextlib.contextmanager
def predicates_read() -> Iterator[None]:
    """Inside, a capture reads the predicates of cond, switch and while_loop, and splits there.

    So a branch or a body may read values of tensors itself.
    """
    before, _thread.reads_predicates = _thread.reads_predicates, True
    try:
        with loops_unrolled():
            yield
    finally:
        _thread.reads_predicates = before
