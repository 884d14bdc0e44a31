"""A table of torch functions and operators that have our own rules, which modes apply."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

# torch's control-flow operators and reentrant checkpoint, with their rules
# (control_flow/torch_operators.py). They call functions, and a mode that intercepts the operator
# has to see the operators inside these too.
RULES: dict[Any, Callable[..., Any]] = {}


class _Thread(threading.local):
    mode: AbstractContextManager[Any] | None = None  # that handles the call of an operator


_thread = _Thread()


@contextmanager
def suspended(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """Around a call of custom_function_call by a mode that handles torch functions.

    torch takes the mode off the stack for the call, so the Function's methods would run without.
    """
    before, _thread.mode = _thread.mode, mode
    try:
        yield
    finally:
        _thread.mode = before


def resumed() -> AbstractContextManager[Any]:
    """Puts the suspended mode, if any, back on the stack, for the Function's methods."""
    mode, _thread.mode = _thread.mode, None
    return nullcontext() if mode is None else mode


def is_suspended() -> bool:
    """Whether :func:`resumed` would put a mode back on the stack."""
    return _thread.mode is not None
