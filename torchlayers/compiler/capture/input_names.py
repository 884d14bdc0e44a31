"""Names the inputs of a captured graph after the function's arguments."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from torchlayers.core import pytree

# Names that are invalid for an argument in a graph's code, and that torch.fx does not change.
_TAKEN = ("self", "None")


def input_names(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """Returns a name for each leaf of ``(args, kwargs)``: ``x``, ``params_weight``, ``xs_0``."""
    names = _argument_names(func, len(args))
    identifiers = []
    for name, value in [*zip(names, args, strict=True), *kwargs.items()]:
        identifiers += [identifier(name + pytree.keystr(path)) for path, _ in with_paths(value)]
    return identifiers


def with_paths(value: Any) -> list[tuple[Any, Any]]:
    try:
        return pytree.tree_flatten_with_path(value)[0]
    except ValueError:  # a pytree class registered without key paths
        return [((), leaf) for leaf in pytree.leaves(value)]


def _argument_names(func: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):  # written in C
        parameters = []  # type: ignore[assignment]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names = names[:count]
    return [*names, *(f"arg_{i}" for i in range(len(names), count))]


def identifier(path: str) -> str:
    name = re.sub("[^0-9a-zA-Z]+", "_", path).strip("_") or "arg"
    return f"arg_{name}" if name[0].isdigit() or name in _TAKEN else name
