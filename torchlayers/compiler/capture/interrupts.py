"""Defers Ctrl-C during capture: it is raised in the user's code, or when the capture is over.

torch's tracer pops modes and pushes them back in with statements. An exception at the very end of
one leaves the modes off for good. So Ctrl-C does not interrupt torch's code, but the next line of
the user's function that called it. A second Ctrl-C is not deferred.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torchlayers.compiler.capture.bytecode import is_user_code


@contextlib.contextmanager
def defer_interrupts() -> Iterator[Callable[[], None]]:
    """Defers Ctrl-C inside; yields a function that raises a deferred one now."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
        yield lambda: None
        return
    waiting = _DeferringHandler(handler)
    signal.signal(signal.SIGINT, waiting)
    try:
        yield waiting.deliver
    finally:
        signal.signal(signal.SIGINT, handler)
        waiting.deliver()


class _DeferringHandler:
    """The signal handler while Ctrl-C is deferred."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler
        self._is_waiting = False
        self._frame: FrameType | None = None  # the frame traced until its next line

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_waiting or frame is None or is_user_code(frame.f_code):
            self._stop_tracing()
            self._is_waiting = False
            self._handler(number, frame)
            return
        self._is_waiting = True
        while frame is not None and not is_user_code(frame.f_code):
            frame = frame.f_back
        if frame is not None and sys.gettrace() is None:  # no debugger is tracing
            self._frame = frame
            frame.f_trace = self._at_line
            sys.settrace(_trace_no_calls)

    def deliver(self) -> None:
        self._stop_tracing()
        if self._is_waiting:
            self._is_waiting = False
            self._handler(signal.SIGINT, sys._getframe(1))

    def _at_line(self, frame: FrameType, event: str, arg: Any) -> None:
        self.deliver()

    def _stop_tracing(self) -> None:
        if self._frame is not None:
            self._frame.f_trace = None
            self._frame = None
            sys.settrace(None)


def _trace_no_calls(frame: FrameType, event: str, arg: Any) -> None:
    """A trace function that does not trace the functions that are called."""
