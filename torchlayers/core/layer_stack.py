"""The current layer stack, and the wrapper of transformed functions."""

from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.core.torch_versions import DYNAMO_ATTRIBUTES

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["KINDS", "StackEntry", "current_stack", "transformed"]

# The kinds of layers that are written in C++.
KINDS = ("grad", "jvp", "vmap", "functionalize", "seeded", "drawn outside")

# NOTE [Entering is one call]
# An entry is a context manager written in C++, used in a plain `with`. A signal
# (Ctrl-C) is handled between two bytecodes, never inside such a call, so the layer is
# never on the stack without an `__exit__` that will remove it. A call of grad, vjp, jvp
# or vmap is in C++ from entering to leaving (csrc/python/entry.h).


class StackEntry(NamedTuple):
    """A snapshot of a layer of the stack."""

    owner: str
    kind: str
    level: int
    metadata: dict[str, Any]

    def __repr__(self) -> str:
        facts = [f"level {self.level}", self.owner]
        facts += [f"{name}={value!r}" for name, value in self.metadata.items()]
        return f"{self.kind} ({', '.join(facts)})"


def current_stack() -> tuple[StackEntry, ...]:
    """The layers active on this thread, outermost first.

    They include layers of torch.func nested with ours.

    Returns:
        A tuple of layers. Each has ``kind`` ("grad", "jvp", "vmap", ...), ``level``
        (1 for the outermost), ``owner`` ("torchlayers" or "torch.func"), ``metadata``
        (a dict: a vmap's ``batch_size`` and ``randomness``; for a grad or jvp, the modes
        that were active outside it), and a readable repr.
    Example:
        >>> def f(x):
        ...     print(current_stack())
        ...     return x.sum()
        >>> _ = torchlayers.vmap(f)(torch.ones(3, 2))
        (vmap (level 1, torchlayers, batch_size=3, randomness='error'),)
        >>> current_stack()
        ()
    """
    entries = torch._C._functorch.get_interpreter_stack() or ()
    return tuple(
        StackEntry("torchlayers", *layer)
        if layer
        else StackEntry("torch.func", entry.key().name.lower(), entry.level(), {})
        for layer, entry in zip(_C.current_stack(), entries, strict=True)
    )


def transformed(func: Callable[..., Any], wrapper: Callable[P, R]) -> Callable[P, R]:
    """Returns wrapper with the name and docstring of func, the function that it transforms."""
    if tracing_state.is_tracing():
        return wrapper
    return _C.wraps(wrapper, func, WRAPPER_ASSIGNMENTS, DYNAMO_ATTRIBUTES)
