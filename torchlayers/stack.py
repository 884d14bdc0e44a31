"""The stack of layers as it is now, and entering one."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torchlayers import _C, torch_compile
from torchlayers._C import FunctionalizeEntry as FunctionalizeEntry
from torchlayers._C import GradEntry as GradEntry
from torchlayers._C import JvpEntry as JvpEntry
from torchlayers._C import Layer as Layer
from torchlayers._C import VmapEntry as VmapEntry
from torchlayers.torch_versions import wraps

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "FunctionalizeEntry",
    "GradEntry",
    "JvpEntry",
    "Layer",
    "VmapEntry",
    "current_stack",
    "transformed",
]

# NOTE [Entering is one call]
# An entry is a context manager written in C++, used in a plain `with`. A signal
# (Ctrl-C) is handled between two bytecodes, never inside such a call, so there is
# no moment at which the layer is on the stack and nobody is bound to take it off.
# A call of grad, vjp, jvp or vmap is C++ from entering to leaving (csrc/python/entry.h).


def current_stack() -> tuple[Layer, ...]:
    """The layers active on this thread, outermost first.

    Layers of torch.func nested with ours are among them.

    Returns:
        A tuple of layers. Each has ``kind`` ("grad", "jvp", "vmap", ...), ``level``
        (1 for the outermost), ``owner`` ("torchlayers" or "torch.func"), ``metadata``
        (a dict: a vmap's ``batch_size`` and ``randomness``, the modes that held outside
        a grad or jvp), and a readable repr.
    Example:
        >>> def f(x):
        ...     print(current_stack())
        ...     return x.sum()
        >>> _ = torchlayers.vmap(f)(torch.ones(3, 2))
        (vmap (level 1, torchlayers, batch_size=3, randomness='error'),)
        >>> current_stack()
        ()
    """
    return tuple(_C.current_stack())


def transformed(func: Callable[..., Any], wrapper: Callable[P, R]) -> Callable[P, R]:
    """wrapper, named and documented as the function it transforms."""
    if torch_compile.is_tracing():
        return wrapper
    return wraps(func)(wrapper)
