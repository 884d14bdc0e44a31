"""Printing, logging, files, sockets, processes and seeds: what no captured graph can do again."""

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
from torchlayers.compiler.capture.errors import SeedError
from torchlayers.core.shared_change import SharedChange, replace_attributes

_FILES = ("remove", "unlink", "rename", "replace", "mkdir", "rmdir")
_SEEDS = ("manual_seed", "seed", "set_rng_state")
_SEEDING = "seeds torch's random numbers"
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
    """The captures of calls on this thread, and the last refusal, which code may have caught.

    Attributes:
        func: the function that is captured; of a graph for the user, only seeds are refused.
    """

    func: Callable[..., Any] | None = None
    is_call = False
    refusal: OutsideWorldError | SeedError | None = None


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
    yield from ((module, name, _SEEDING) for module in (torch, torch.random) for name in _SEEDS)
    if (subprocess := sys.modules.get("subprocess")) is not None:
        yield subprocess.Popen, "__init__", "starts a process"
    if (socket := sys.modules.get("socket")) is not None:
        yield from ((socket.socket, name, "uses a socket") for name in _SOCKETS)


def _refusing(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        captured = _thread.func
        if captured is not None and _is_refused(what):
            _thread.refusal = (
                OutsideWorldError(what)
                if _thread.is_call
                else SeedError(captured, function.__name__)
            )
            raise _thread.refusal
        return function(*args, **kwargs)

    return call


def _is_refused(what: str) -> bool:
    if what != _SEEDING:
        return _thread.is_call and _is_called_by_users(sys._getframe(2))
    # A with block restores the state after a refusal.
    is_after = sys.exc_info()[1] is not None and sys.exc_info()[1] is _thread.refusal
    return not is_after and not _is_in_checkpoint()


def _is_in_checkpoint() -> bool:
    """Whether torch's checkpoint sets a state, so that a recomputation draws the same."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


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
def refused(func: Callable[..., Any], is_call: bool) -> Iterator[None]:
    """Inside, code of the user that is about to do so raises OutsideWorldError instead.

    Args:
        func: the function that is captured.
        is_call: whether a call is captured. Otherwise only seeds are refused, with SeedError.
    """
    outer = _thread.func, _thread.is_call
    with _watched.made():
        _thread.func, _thread.is_call = func, is_call
        _thread.refusal = None
        try:
            yield
        finally:
            _thread.func, _thread.is_call = outer


def is_refusing() -> bool:
    """Whether this thread is inside :func:`refused`."""
    return _thread.func is not None


def raise_if_caught() -> None:
    """Raises the refusal again if the function has caught it."""
    if _thread.refusal is not None:
        raise _thread.refusal
