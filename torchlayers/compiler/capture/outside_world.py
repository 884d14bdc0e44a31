"""Printing, logging, files, sockets and processes: what no captured graph can do again."""

import builtins
import contextlib
import functools
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from torchlayers.compiler.capture.bytecode import is_own_or_torchs, is_user_code
from torchlayers.core.shared_change import SharedChange, replace_attributes

_FILES = ("remove", "unlink", "rename", "replace", "mkdir", "rmdir")
_SOCKETS = ("accept", "bind", "connect", "recv", "recv_into", "recvfrom", "send", "sendall")


class OutsideWorldError(Exception):
    """A captured function was about to do what no graph can.

    Attributes:
        what: "prints", for instance.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class _Thread(threading.local):
    """The captures on this thread that refuse, and the last refusal, which code may have caught."""

    refuses = 0
    refusal: OutsideWorldError | None = None


_thread = _Thread()


def _outside_functions() -> Iterator[tuple[Any, str, str]]:
    """Yields functions, with what those that call them do: of imported modules alone."""
    yield builtins, "print", "prints"
    yield builtins, "input", "asks for input"
    streams = {id(stream): stream for stream in (sys.stdout, sys.stderr)}  # they may be one
    yield from ((stream, "write", "prints") for stream in streams.values())
    yield logging.Logger, "handle", "logs"
    yield from ((module, "open", "opens a file") for module in (builtins, io))
    yield torch, "save", "saves a file"
    yield torch, "load", "loads a file"
    yield from ((os, name, "changes files") for name in _FILES)
    yield os, "system", "starts a process"
    if (subprocess := sys.modules.get("subprocess")) is not None:
        yield subprocess.Popen, "__init__", "starts a process"
    if (socket := sys.modules.get("socket")) is not None:
        yield from ((socket.socket, name, "uses a socket") for name in _SOCKETS)


def _refusing(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _thread.refuses and _is_called_by_users(sys._getframe(1)):
            _thread.refusal = OutsideWorldError(what)
            raise _thread.refusal
        return function(*args, **kwargs)

    return call


def _is_called_by_users(frame: FrameType | None) -> bool:
    """Whether user code calls, directly or through Python's library; warnings are shown once."""
    while frame is not None:
        code = frame.f_code
        if is_user_code(code):
            return True
        if is_own_or_torchs(code) or code.co_filename == warnings.__file__:
            return False
        frame = frame.f_back
    return False


def _watch() -> Callable[[], None]:
    return replace_attributes(
        [
            (holder, name, _refusing(getattr(holder, name), what))
            for holder, name, what in _outside_functions()
            if hasattr(holder, "__dict__")
        ]
    )


_watched = SharedChange(_watch)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Inside, code of the user that is about to do so raises OutsideWorldError instead."""
    with _watched.made():
        _thread.refuses += 1
        _thread.refusal = None
        try:
            yield
        finally:
            _thread.refuses -= 1


def raise_if_caught() -> None:
    """Raises OutsideWorldError if the function has caught one."""
    if _thread.refuses and _thread.refusal is not None:
        raise _thread.refusal
