"""Whether captures on this thread unroll all loops, instead of capturing long ones as operators."""

import contextlib
import threading
from collections.abc import Iterator


class _Thread(threading.local):
    is_unrolling = False


_thread = _Thread()


def are_loops_unrolled() -> bool:
    """Whether this thread is inside :func:`loops_unrolled`."""
    return _thread.is_unrolling


@contextlib.contextmanager
def loops_unrolled() -> Iterator[None]:
    """Inside, a loop's step numbers are Python ints, and ``x[i]`` is a view in the graph, too."""
    before, _thread.is_unrolling = _thread.is_unrolling, True
    try:
        yield
    finally:
        _thread.is_unrolling = before
