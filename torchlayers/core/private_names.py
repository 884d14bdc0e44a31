"""The one place that looks up private names of torch: those with an underscore, or below one.

A new torch may lack any of them, and only what needs a lost name may fail. So no module imports
one: each is looked up here when it is first needed.

    ``functorch = private("torch._C._functorch")``
        a namespace; an attribute is looked up when it is first read, and later reads cost what an
        attribute of a module costs
    ``lookup("torch._tensor_str._str")``
        the object now; ``lookup(name, default)`` states a fallback
    ``private_class("torch._subclasses.FakeTensor")``
        a class for isinstance, except and base classes, at import; if torch lacks it, a class
        without instances

A name that this torch lacks, and that has no fallback, raises a TorchVersionError, which says what
needs it. ``TORCHLAYERS_WITHOUT=torch._guards.tracing`` in the environment makes a name (or
several, with commas) absent, to see what happens then; tests/repository/missing_names.py tries all.

Names that several rooms use are in torch_private.py, operators in operators.py.
"""

import importlib
import os
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import torch

from torchlayers.core.errors import TorchVersionError

OLDEST, NEWEST = "2.11", "2.15"
WITHOUT = frozenset(os.environ.get("TORCHLAYERS_WITHOUT", "").split(",")) - {""}

_ABSENT: Any = object()
_HERE = (__name__, f"{__package__}.operators")
# What needs a name, by the room whose module asks for it. Others are asked on behalf of these.
_FEATURES = {
    "autograd_function": "autograd.Function in a transform",
    "compiler": "compile",
    "control_flow": "control flow",
    "distributed": "a distributed program",
    "fx": "a captured graph",
    "graph": "graph.differentiate",
    "implicit": "a derivative of a solution",
    "modules": "a module's transform",
    "random": "keyed random numbers",
    "remat": "checkpoint",
    "taps": "a tap",
    "transforms": "a transform",
}
# Values that may be rebound, such as flags and levels, are read anew each time.
_PLAIN = (bool, int, float, str, tuple, type(None))


def private(path: str) -> Any:
    """Returns a namespace: torch's module (or class) of this name, looked up as it is used.

    It is for reading; to assign to an attribute of torch's module, ``lookup`` that.
    """
    namespace = ModuleType(path)

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = lookup(f"{path}.{name}")
        if not isinstance(value, _PLAIN):
            setattr(namespace, name, value)
        return value

    # In the module's dict and not in a class: reads then are as fast as those of any module.
    vars(namespace)["__getattr__"] = find
    return namespace


def lookup(path: str, default: Any = _ABSENT) -> Any:
    """Returns what torch has under a dotted name; if nothing, the default, or raises."""
    value = _find(path)
    if value is not _ABSENT:
        return value
    if default is _ABSENT:
        raise TorchVersionError(explain(path))
    return default


def private_class(path: str) -> Any:
    """Returns torch's class of this name, or one in its place that has no instances.

    Subclasses of that can be defined, and raise a TorchVersionError when they are called.
    """
    value = _find(path)
    if value is not _ABSENT:
        return value

    def refuse(*_: Any, **__: Any) -> Any:
        raise TorchVersionError(explain(path))

    # An exception is one too, since Python looks at an except clause only after another error.
    bases = (Exception,) if path.endswith(("Exception", "Error")) else ()
    return type(path.rpartition(".")[2], bases, {"__new__": refuse, "__module__": __name__})


def patch(path: str, make: Callable[[Any], Any]) -> None:
    """Replaces a function of torch by ``make(function)``; does nothing if torch lacks it."""
    function = _find(path)
    if function is not _ABSENT:
        owner, _, name = path.rpartition(".")
        setattr(_find(owner), name, make(function))


def explain(path: str) -> str:
    """The message for a name that this torch lacks: what needs it, and what to do."""
    version = torch.__version__.partition("+")[0]
    return (
        f"torchlayers: {_name_caller()} needs {path}, which torch {version} does not have. "
        f"Use torch {OLDEST} to {NEWEST}."
    )


def _find(path: str) -> Any:
    value: Any = torch
    name = "torch"
    for part in path.split(".")[1:]:
        name += f".{part}"
        if name in WITHOUT:
            return _ABSENT
        # A package may have a function with the name of its module: the module comes first.
        inner = sys.modules.get(name)
        if inner is None:
            inner = getattr(value, part, _ABSENT)
        if inner is _ABSENT and isinstance(value, ModuleType):
            inner = _import(name)
        if inner is _ABSENT:
            return _ABSENT
        value = inner
    return value


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Another missing module, such as one that torch needs, is not ours to explain.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return _ABSENT


def _name_caller() -> str:
    """The feature that needs a name, with the module of ours that asked for it."""
    place = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        package, _, inner = module.partition(".")
        if package == __package__.partition(".")[0] and module not in _HERE:
            place = place or inner
            feature = _FEATURES.get(inner.partition(".")[0])
            if feature is not None:
                return f"{feature} ({place})"
        frame = frame.f_back
    return place or "lookup"
