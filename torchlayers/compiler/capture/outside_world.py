"""Printing, asking and opening files: what a function does that no captured graph can do again."""

import builtins
import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torchlayers.compiler.capture.bytecode import is_user_code
from torchlayers.core.shared_change import SharedChange, replace_attributes

_WHAT = {"print": "prints", "input": "asks for input", "open": "opens a file"}


class OutsideWorldError(Exception):
    """A captured function was about to do what no graph can.

    Attributes:
        what: "prints", for instance.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class _Thread(threading.local):
    refuses = 0  # captures of this thread


_thread = _Thread()


def _refusing(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _thread.refuses and is_user_code(sys._getframe(1).f_code):
            raise OutsideWorldError(what)
        return function(*args, **kwargs)

    return call


def _watch() -> Callable[[], None]:
    return replace_attributes(
        [(builtins, name, _refusing(getattr(builtins, name), what)) for name, what in _WHAT.items()]
    )


_watched = SharedChange(_watch)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Inside, code of the user that is about to do so raises OutsideWorldError instead."""
    with _watched.made():
        _thread.refuses += 1
        try:
            yield
        finally:
            _thread.refuses -= 1
