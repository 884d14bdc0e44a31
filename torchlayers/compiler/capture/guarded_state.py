"""Context managers around a capture, so that the graph is of the function alone."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from torchlayers.compiler.capture.state import outside_world
from torchlayers.core.private_names import lookup
from torchlayers.core.shared_change import SharedChange
from torchlayers.core.torch_private import dispatch_keys, saved_hooks
from torchlayers.fx.subgraph_tracer import compile_lock


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


def silence_fake_tensor_logs() -> contextlib.AbstractContextManager[None]:
    """Silences torch's log of errors on fake tensors, with stacks: the caller gets them anyway.

    For a thread inside ``outside_world.refused``.
    """
    return _silencing.made()


def _add_filter() -> Callable[[], None]:
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def is_from_no_capture(entry: logging.LogRecord) -> bool:
        return not outside_world.is_refusing()

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
