"""Functions as they are now, regardless of later changes to the variables that they read.

NOTE [A function that runs again]
The rules of a solution call the user's function again in the backward pass, when variables of an
enclosing function may be bound to other values: in ``x = custom_root(lambda y: y**2 - x, x)`` to
the solution itself. So the function's closure is copied when it is passed, and with it the
functions in it, and its globals if one of them is a tensor.
"""

import dis
import functools
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.core.code_objects import names_in


def snapshot(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a copy of the function whose variables are not bound again."""
    return _copied(func, {})  # type: ignore[no-any-return]


def _copied(value: Any, known: dict[int, Any]) -> Any:
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, types.FunctionType):
        return _copied_function(value, known)
    if isinstance(value, functools.partial) and type(value) is functools.partial:
        arguments = [_copied(each, known) for each in value.args]
        keywords = {name: _copied(each, known) for name, each in value.keywords.items()}
        return functools.partial(_copied(value.func, known), *arguments, **keywords)
    if isinstance(value, tuple):
        parts = [_copied(each, known) for each in value]
        if all(part is each for part, each in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _copied_function(func: types.FunctionType, known: dict[int, Any]) -> Any:
    names = func.__globals__
    variables = _globals_read(func.__code__)
    if any(isinstance(names.get(name), Tensor) for name in variables):
        names = {**names}
    elif not func.__closure__:
        return func
    cells = tuple(types.CellType() for _ in func.__closure__ or ())
    made = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, cells)
    made.__kwdefaults__ = func.__kwdefaults__
    made.__dict__.update(func.__dict__)
    known[id(func)] = made  # before its closure, which may hold it
    for cell, old in zip(cells, func.__closure__ or (), strict=True):
        try:
            cell.cell_contents = _copied(old.cell_contents, known)
        except ValueError:  # not assigned yet
            continue
    return made


@functools.lru_cache(maxsize=512)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    """The names that the code may read as globals; none if it assigns to one."""
    if any(each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for each in dis.get_instructions(code)):
        return ()
    return tuple(names_in(code))
