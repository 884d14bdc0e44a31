"""What is in place while a function is recorded, so that the recording is of the function alone."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import torch

_torch: Any = torch  # what it keeps for its own use has no types


@contextlib.contextmanager
def dispatched_as_before() -> Iterator[None]:
    """After an error, operators are dispatched as they were before.

    What prints a tensor holds a guard in a local variable, not in a with. Where printing raises,
    the traceback keeps the guard; it is undone when that goes, after all others, and leaves this
    thread deep inside the recording that failed.
    """
    included = _torch._C._dispatch_tls_local_include_set()
    excluded = _torch._C._dispatch_tls_local_exclude_set()
    with _torch._C._ForceDispatchKeyGuard(included, excluded):
        try:
            yield
        except BaseException as error:
            _forget_printing(error)
            raise


def _forget_printing(error: BaseException | None) -> None:
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code is _torch._tensor_str._str.__code__:
                traceback.tb_frame.clear()
            traceback = traceback.tb_next
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def distributions_not_validated() -> Iterator[None]:
    """torch.distributions looks at values, by default or where it was told to."""
    from torch.distributions import Distribution

    kind: Any = Distribution
    default, make, look = kind._validate_args, kind.__init__, kind._validate_sample

    def make_unlooked(
        self: Distribution,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        event_shape: torch.Size = torch.Size(),  # noqa: B008
        validate_args: bool | None = None,
    ) -> None:
        make(self, batch_shape, event_shape)

    kind.set_default_validate_args(False)
    kind.__init__, kind._validate_sample = make_unlooked, lambda self, value: None
    try:
        yield
    finally:
        kind.__init__, kind._validate_sample = make, look
        kind.set_default_validate_args(default)


@contextlib.contextmanager
def fakes_not_logged() -> Iterator[None]:
    """torch logs what an operator raises on fake tensors, with a stack; the caller gets it too."""
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
def without_hooks() -> Iterator[None]:
    """Hooks on saved tensors (checkpointing) are for the calls, which save tensors with data."""
    hooks = []
    autograd = _torch._C._autograd
    while (top := autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            autograd._push_saved_tensors_default_hooks(pack, unpack)
