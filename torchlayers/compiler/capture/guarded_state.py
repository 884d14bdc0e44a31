"""Context managers around a capture, so that the graph is of the function alone."""

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from torchlayers.compiler.capture.errors import SeedError
from torchlayers.core.private_names import lookup
from torchlayers.core.shared_change import SharedChange, replace_attributes
from torchlayers.core.torch_private import dispatch_keys, saved_hooks
from torchlayers.fx.subgraph_tracer import compile_lock

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
    outer = _thread.func
    with _refusing_seeds.made():
        _thread.func = func
        try:
            yield
        finally:
            _thread.func = outer


class _Thread(threading.local):
    """The function that this thread captures, if it captures one."""

    func: Callable[..., Any] | None = None


_thread = _Thread()


def _replace_seeds() -> Callable[[], None]:
    refusing = {name: _refusing(name, getattr(torch.random, name)) for name in _SEEDS}
    modules = torch, torch.random
    return replace_attributes([(module, *pair) for module in modules for pair in refusing.items()])


def _refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        captured = _thread.func
        is_refused = isinstance(sys.exc_info()[1], SeedError)  # a with block restores state
        if captured is not None and not is_refused and not _is_in_checkpoint():
            raise SeedError(captured, name)
        return function(*args, **kwargs)

    return call


_refusing_seeds = SharedChange(_replace_seeds)


def _is_in_checkpoint() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


def silence_fake_tensor_logs() -> contextlib.AbstractContextManager[None]:
    """Silences torch's log of errors on fake tensors, with stacks: the caller gets them anyway.

    For a thread inside ``refuse_seeding``.
    """
    return _silencing.made()


def _add_filter() -> Callable[[], None]:
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def is_from_no_capture(entry: logging.LogRecord) -> bool:
        return _thread.func is None

    logger.addFilter(is_from_no_capture)
    return lambda: logger.removeFilter(is_from_no_capture)


_silencing = SharedChange(_add_filter)


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


@contextlib.contextmanager
def while_nothing_compiles(
    changes: Sequence[contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Enters these, and leaves them, while torch.compile does not compile on another thread.

    It guards on hooks that are there for all modules, and must find them until it is done.
    """
    with contextlib.ExitStack() as stack:
        with compile_lock():
            for change in changes:
                stack.enter_context(change)
        try:
            yield
        finally:
            with compile_lock():
                stack.close()
