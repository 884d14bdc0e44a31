"""The current layer stack, and the wrapper of transformed functions."""

from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS
from typing import Any, NamedTuple

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.core.annotations import P, R
from torchlayers.core.entered_at import lines_of
from torchlayers.core.function_checks import require_function
from torchlayers.core.torch_private import functorch, vmap_interpreter
from torchlayers.core.torch_versions import DYNAMO_ATTRIBUTES

# The kinds of layers that are written in C++.
KINDS = ("grad", "jvp", "vmap", "functionalize", "seeded", "drawn outside")

__all__ = [
    "KINDS",
    "LayerStack",
    "StackEntry",
    "current_stack",
    "kinds_of_layers",
    "transformed",
]

# NOTE [Entering is one call]
# An entry is a context manager written in C++, used in a plain `with`. A signal
# (Ctrl-C) is handled between two bytecodes, never inside such a call, so the layer is
# never on the stack without an `__exit__` that will remove it. A call of grad, vjp, jvp
# or vmap is in C++ from entering to leaving (csrc/python/entry.h).


def kinds_of_layers() -> list[str]:
    """The kinds of the active layers, including torch.func's, which torch.compile runs for ours."""
    entries = functorch.get_interpreter_stack() or ()
    return [
        entry.key().name.lower() if layer is None else layer[0]
        for layer, entry in zip(_C.current_stack(), entries, strict=True)
    ]


class StackEntry(NamedTuple):
    """A snapshot of a layer of the stack."""

    owner: str
    kind: str
    level: int
    metadata: dict[str, Any]
    entered_at: str = ""

    @property
    def batch_size(self) -> int | None:
        """A vmap's number of samples; None for another layer."""
        return self.metadata.get("batch_size")

    @property
    def randomness(self) -> str | None:
        """How random operators behave in a vmap; None for another layer."""
        return self.metadata.get("randomness")

    @property
    def modes_outside(self) -> dict[str, bool]:
        """For a grad or jvp, the autograd modes that were active outside it, by name."""
        before = "previous_"
        items = self.metadata.items()
        return {name.removeprefix(before): on for name, on in items if name.startswith(before)}

    def __repr__(self) -> str:
        facts = [f"level {self.level}", self.owner]
        facts += [f"{name}={value!r}" for name, value in self.metadata.items()]
        entered = f" entered at {self.entered_at}" if self.entered_at else ""
        return f"{self.kind} ({', '.join(facts)}){entered}"


class LayerStack(tuple[StackEntry, ...]):
    """A snapshot of the stack, outermost layer first. It prints a layer a line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(repr, self)) or "no layers"


def current_stack() -> LayerStack:
    """The layers active on this thread, outermost first.

    They include layers of torch.func nested with ours.

    Returns:
        A tuple of layers, which prints a layer a line. Each has ``kind`` ("grad", "jvp", "vmap",
        ...), ``level`` (1 for the outermost), ``owner`` ("torchlayers" or "torch.func"), a vmap's
        ``batch_size`` and ``randomness``, ``modes_outside`` (for a grad or jvp, the autograd modes
        outside it), ``entered_at`` (the line of the user's code that entered it: ``train.py:12,
        `vmap(loss)(x)```; "" if that can't be told), and ``metadata`` (a dict of all that the
        layer knows of itself).
    Example:
        >>> def f(x):
        ...     print(current_stack())
        ...     return x.sum()
        >>> _ = torchlayers.vmap(f)(torch.ones(3, 2))  # doctest: +ELLIPSIS
        vmap (level 1, torchlayers, batch_size=3, randomness='error') entered at ...
        >>> current_stack()
        ()
    """
    entries = functorch.get_interpreter_stack() or ()
    snapshots = [
        StackEntry("torchlayers", *layer)
        if layer
        else StackEntry("torch.func", entry.key().name.lower(), entry.level(), _facts_of(entry))
        for layer, entry in zip(_C.current_stack(), entries, strict=True)
    ]
    noted = [entry.metadata.pop("entered_at", "") for entry in snapshots]
    unknown = [entry.kind for entry, line in zip(snapshots, noted, strict=True) if not line]
    lines = iter(lines_of(unknown) if unknown else [])
    pairs = zip(snapshots, noted, strict=True)
    return LayerStack(entry._replace(entered_at=line or next(lines)) for entry, line in pairs)


def _facts_of(entry: Any) -> dict[str, Any]:
    """What torch.func's stack knows of a layer of its own."""
    if entry.key() != functorch.TransformType.Vmap:
        return {}
    vmap = vmap_interpreter(entry)
    return {"batch_size": vmap.batch_size(), "randomness": vmap.randomness()}


def transformed(func: Callable[..., Any], wrapper: Callable[P, R]) -> Callable[P, R]:
    """Returns wrapper with the name and docstring of func, the function that it transforms.

    Raises:
        CallError: func is not callable, but mostly the result of a call.
    """
    if tracing_state.is_tracing():
        return wrapper
    require_function(func)
    return _C.wraps(wrapper, func, WRAPPER_ASSIGNMENTS, DYNAMO_ATTRIBUTES)
