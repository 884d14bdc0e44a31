"""Makes torch dispatch old-style Functions to our layers.

NOTE [Reaching old-style Functions]
torch's Function.apply raises an error for an old-style Function inside a transform. At each call
it looks up setup_context on the class, and binds the operands to forward's signature. So when a
layer is entered and new old-style classes exist, each is patched: inside our layers it shows a
setup_context, and a forward that accepts any operands; outside them both are as written. torch's
own classes are not patched, except the old-style Functions of reentrant checkpointing, Dirichlet
and DTensor, in whose place replacements of ours run.
"""

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from torchlayers import _C
from torchlayers.autograd_function import dirichlet
from torchlayers.autograd_function.custom_function_call import Function
from torchlayers.core.torch_private import guards
from torchlayers.distributed import dtensor_calls

# The base class that has the methods for plain autograd.
_DEFAULT: Any = torch.autograd.Function.__mro__[1]
_ANY = inspect.signature(lambda *operands: None)


def _placeholder_setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Placeholder setup_context of a patched old-style class; never called."""


def _is_applied_in_layer() -> bool:
    """Whether a Function is now applied inside our layers, and not traced by Dynamo there, which
    takes old-style Functions as they are."""
    return _C.any_layer() and guards.TracingContext.try_get() is None


class _SetupContext:
    """Descriptor for setup_context: a placeholder inside our layers, torch's default outside."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        return _placeholder_setup_context if _is_applied_in_layer() else _DEFAULT.setup_context


class _Forward:
    """Descriptor for forward: inside our layers its signature accepts any operands, and no ctx."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self._shown: tuple[Any, Any] | None = None

    def __get__(self, instance: Any, owner: Any) -> Any:
        forward = self.original.__get__(instance, owner)
        if not _is_applied_in_layer() or not is_old_style(owner):
            return forward

        if self._shown is None or self._shown[0] is not forward:
            self._shown = forward, _with_any_operands(forward)
        return self._shown[1]


def _with_any_operands(forward: Any) -> Any:
    """The function with a signature of any operands, and with its own code, which Dynamo guards."""
    shown: Any
    if isinstance(forward, types.FunctionType):
        shown = types.FunctionType(
            forward.__code__,
            forward.__globals__,
            forward.__name__,
            forward.__defaults__,
            forward.__closure__,
        )
        shown.__kwdefaults__ = forward.__kwdefaults__
        functools.update_wrapper(shown, forward)
        del shown.__wrapped__
    else:
        shown = functools.wraps(forward)(lambda *operands, **options: forward(*operands, **options))
    shown.__signature__ = _ANY
    return shown


def adopt_old_style_functions() -> None:
    """Patches all existing old-style Functions so that they work inside our layers.

    NOTE [Reaching old-style Functions].
    """
    for function in _subclasses(torch.autograd.Function):
        if is_defined_by_torch(function) and not _has_ours_instead(function):
            continue
        if function.setup_context is _DEFAULT.setup_context:
            function.setup_context = _SetupContext()
        forward = function.__dict__.get("forward")
        if is_old_style(function) and forward is not None and not isinstance(forward, _Forward):
            function.forward = _Forward(forward)


def _has_ours_instead(function: Function) -> bool:
    ours = (CheckpointFunction, dirichlet.TORCH_DIRICHLET)
    return function in ours or dtensor_calls.replacement_for(function) is not None


def is_defined_by_torch(function: Function) -> bool:
    return function.__module__.partition(".")[0] == "torch"


def is_old_style(function: Function) -> bool:
    """Whether the Function defines no setup_context."""
    return is_adopted(function) or function.setup_context is _DEFAULT.setup_context


def is_adopted(function: Function) -> bool:
    """Whether it is an old-style Function patched by adopt_old_style_functions."""
    return isinstance(inspect.getattr_static(function, "setup_context"), _SetupContext)


def is_shown_as_new(function: Function) -> bool:
    """Whether it is an old-style Function that currently shows the placeholder setup_context."""
    return function.setup_context is _placeholder_setup_context


def _subclasses(function: Any) -> Iterator[Any]:
    for subclass in function.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
