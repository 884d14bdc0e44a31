"""Describes transformed functions: ``vmap(grad(loss, argnums=0), in_dims=0)``.

A transformed function is a plain Python function, so that torch.compile can trace it, pickle can
find it by name and a call costs nothing more; its repr is Python's. The transform and its options
are read off the function's closure when they are asked for.
"""

import os
from types import FunctionType
from typing import Any

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import is_user_file

# The options shown unless they are None, in this order; with the default of those that are left
# out if they have it.
_ALWAYS = object()
_OPTIONS = {
    "argnums": _ALWAYS,
    "in_dims": _ALWAYS,
    "out_dims": 0,
    "has_aux": False,
    "randomness": "error",
    "axis_name": _ALWAYS,
    "chunk_size": _ALWAYS,
    "memory_budget": _ALWAYS,
    "names": _ALWAYS,
}


def describe_function(func: Any) -> str:
    """Returns the transforms around a function, outermost first, and the function's name."""
    if isinstance(func, _C.CompiledCall):
        compiled: Any = func
        return f"compile({describe_function(compiled._func)})"
    inner = getattr(func, "__wrapped__", None)
    is_transformed = isinstance(func, FunctionType) and callable(inner)
    if not is_transformed or is_user_file(func.__code__.co_filename):
        return pytree.name_of(func)
    known = _closure(func)
    options = [
        f", {name}={known[name]!r}"
        for name, default in _OPTIONS.items()
        if known.get(name) not in (None, default)
    ]
    return f"{_transform(func, known)}({describe_function(inner)}{''.join(options)})"


def _closure(func: FunctionType) -> dict[str, Any]:
    """The variables of a wrapper's closure, and the fields of its NamedTuple of options."""
    variables: dict[str, Any] = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            variables = {**value._asdict(), **variables}
        else:
            variables[name] = value
    if isinstance(wrapped := variables.get("function"), FunctionType):  # by a decorator of ours
        return _closure(wrapped)
    return variables


def _transform(func: FunctionType, known: dict[str, Any]) -> str:
    if isinstance(known.get("api"), str):
        return str(known["api"])
    layer = known.get("self")
    if layer is not None and isinstance(getattr(layer, "name", None), str):  # torchlayers.Layer
        return str(layer.name)
    qualified = getattr(func.__code__, "co_qualname", "")  # since Python 3.11
    outer = qualified.partition(".<locals>")[0].rpartition(".")[2].lstrip("_")
    return outer or os.path.splitext(os.path.basename(func.__code__.co_filename))[0]
