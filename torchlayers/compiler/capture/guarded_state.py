"""Context managers around a capture, so that the graph is of the function alone."""

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from torchlayers.compiler.capture.errors import SeedError
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import dispatch_keys, saved_hooks

_SEEDS = ("manual_seed", "seed", "set_rng_state")


@contextlib.contextmanager
def restore_dispatch_on_error() -> Iterator[None]:
    """Restores the dispatch keys of this thread after an error.

    torch's code for printing tensors holds a guard in a local variable, not in a with statement. If
    printing raises, the traceback keeps the guard alive. The guard then ends after all others, when
    the traceback is freed, and leaves this thread with the dispatch keys of the failed capture.
    """
    with dispatch_keys():
        try:
            yield
        except BaseException as error:
            _forget_printing(error)
            raise


def _forget_printing(error: BaseException | None) -> None:
    printing = getattr(lookup("torch._tensor_str._str", None), "__code__", None)
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code is printing:
                traceback.tb_frame.clear()
            traceback = traceback.tb_next
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def refuse_seeding(func: Callable[..., Any]) -> Iterator[None]:
    """Raises SeedError where torch's generators are seeded: a capture draws nothing from them.

    torch's checkpoint sets states so that a recomputation draws the same; that is captured.
    """
    thread = threading.get_ident()
    modules: tuple[Any, ...] = torch, torch.random

    def refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_told = isinstance(sys.exc_info()[1], SeedError)  # a with block restores state
            if threading.get_ident() == thread and not is_told and not _is_in_checkpoint():
                raise SeedError(func, name)
            return function(*args, **kwargs)

        return call

    before = {name: getattr(torch.random, name) for name in _SEEDS}
    for name, function in before.items():
        instead = refusing(name, function)
        for module in modules:
            setattr(module, name, instead)
    try:
        yield
    finally:
        for name, function in before.items():
            for module in modules:
                setattr(module, name, function)


def _is_in_checkpoint() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def silence_fake_tensor_logs() -> Iterator[None]:
    """Silences torch's log of errors on fake tensors, with stacks: the caller gets them anyway."""
    thread = threading.get_ident()

    def is_of_others(entry: logging.LogRecord) -> bool:
        return entry.thread != thread

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


@contextlib.contextmanager
def disable_saved_tensor_hooks() -> Iterator[None]:
    """Removes hooks on saved tensors (checkpointing): they are for calls, which have data."""
    hooks = []
    while (top := saved_hooks._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        saved_hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            saved_hooks._push_saved_tensors_default_hooks(pack, unpack)
