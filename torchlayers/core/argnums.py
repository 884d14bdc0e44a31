"""Selection of dict entries by name: partition, combine, and names in argnums."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import ArgnumsError
from torchlayers.core.layer_stack import transformed

__all__ = ["Argnums", "Names", "are_numbers", "by_names", "combine", "names", "partition"]

Which: TypeAlias = str | Iterable[str] | Callable[[str, Any], bool]
# Compiled patterns: torch.compile can trace these, but not fnmatch's cache.
Chooser: TypeAlias = tuple[tuple[str, re.Pattern[str]], ...] | Callable[[str, Any], bool]


@dataclass(frozen=True)
class Names:
    """Selects entries of a dict argument; returned by :func:`names`."""

    which: Chooser
    argnum: int = 0


Argnums: TypeAlias = int | Names | tuple[int | Names, ...]


def names(which: Which, argnum: int = 0) -> Names:
    """Selects entries of a dict argument to differentiate with respect to, for ``argnums``.

    It takes the place of an int in the argnums of :func:`torchlayers.grad`, ``grad_and_value``,
    ``jacrev``, ``jacfwd``, ``hessian`` and ``hvp``, alone or in a tuple. The function receives the
    whole dict, and the result has the chosen entries.

    Args:
        which: a pattern for names, in which ``*`` matches any characters, including dots; several
            patterns, one of which has to match; or a function of name and value.
        argnum: the position of the argument, a dict with string keys; negative ints count from
            the end.
    Returns:
        An entry for argnums.
    Raises:
        ArgnumsError: when the transformed function is called: a pattern matches no name, nothing
            is chosen, the argument is not a dict, or argnums names it twice.
    Example:
        >>> def line(params, x):
        ...     return params["weight"] * x + params["bias"]
        >>> params, x = {"weight": torch.tensor(2.0), "bias": torch.tensor(1.0)}, torch.tensor(3.0)
        >>> torchlayers.grad(line, names("weight"))(params, x)
        {'weight': tensor(3.)}
        >>> torchlayers.grad(line, (names("b*"), 1))(params, x)
        ({'bias': tensor(1.)}, tensor(2.))
    """
    return Names(_chooser(which), argnum)


def are_numbers(argnums: Argnums) -> TypeGuard[int | tuple[int, ...]]:
    """Whether argnums has only ints, and no Names.

    Raises:
        ArgnumsError: it is a tensor, which was meant for the function.
    """
    if isinstance(argnums, Tensor):
        raise ArgnumsError(
            "torchlayers: argnums must be an int or a tuple of ints, got Tensor. A transform "
            "returns a function: pass the arguments to that, grad(f)(x)."
        )
    if isinstance(argnums, tuple):
        return not any(isinstance(entry, Names) for entry in argnums)
    return not isinstance(argnums, Names)


def by_names(
    api: str,
    transform: Callable[[Callable[..., Any], Any], Callable[..., Any]],
    func: Callable[..., Any],
    argnums: Argnums,
) -> Callable[..., Any]:
    """transform(func, argnums) for argnums that contain Names.

    The transform gets a function that takes only the chosen entries of each such dict; the
    remaining entries are appended as further arguments.
    """
    entries = argnums if isinstance(argnums, tuple) else (argnums,)
    numbers = tuple(entry.argnum if isinstance(entry, Names) else entry for entry in entries)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = pytree.positions(api, numbers, len(args))
        call_args = [*args]
        orders: dict[int, list[str]] = {}
        for entry, place in zip(entries, places, strict=True):
            if isinstance(entry, Names):
                orders[place] = [*_names_of(api, args[place], place)]
                call_args[place], rest = _split(api, args[place], place, entry.which)
                call_args.append(rest)

        def of_parts(*parts: Any, **kwargs: Any) -> Any:
            whole = [*parts[: len(args)]]
            for (place, order), rest in zip(orders.items(), parts[len(args) :], strict=True):
                entries_of = {**whole[place], **rest}
                whole[place] = {name: entries_of[name] for name in order}
            return func(*whole, **kwargs)

        at = places if isinstance(argnums, tuple) else places[0]
        return transform(transformed(func, of_parts), at)(*call_args, **kwargs)

    return transformed(func, wrapper)


def _names_of(api: str, argument: Any, place: int) -> Mapping[str, Any]:
    if isinstance(argument, Mapping):
        return argument
    raise ArgnumsError(
        f"torchlayers: {api}: argnums selects entries of argument {place} by name, but it is a "
        f"{type(argument).__name__}, not a dict. Choose a dict argument with names(..., "
        "argnum=...)."
    )


def _split(
    api: str, argument: Mapping[str, Any], place: int, which: Chooser
) -> tuple[dict[str, Any], dict[str, Any]]:
    if unmatched := _explain_unmatched(argument, which):
        raise ArgnumsError(f"torchlayers: {api}: argument {place}: {unmatched}")
    chosen, rest = _divide(argument, which)
    if not chosen:
        raise ArgnumsError(
            f"torchlayers: {api}: no entry of argument {place} is chosen, so there is nothing to "
            f"differentiate with respect to. {_list_names(argument)}"
        )
    return chosen, rest


def partition(params: Mapping[str, Any], which: Which) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits a dict of parameters into those to differentiate with respect to and the rest.

    Args:
        params: a dict from names to values, as from :func:`functional` or ``named_parameters()``.
        which: a pattern for names, in which ``*`` matches any characters, including dots; several
            patterns, one of which has to match; or a function of name and value.
    Returns:
        ``(chosen, rest)``: two dicts in the order of params. :func:`combine` is the inverse.
    Raises:
        ValueError: a pattern matches no name.
    Example:
        >>> params = {"encoder.weight": 1, "encoder.bias": 2, "head.weight": 3}
        >>> partition(params, "encoder.*")
        ({'encoder.weight': 1, 'encoder.bias': 2}, {'head.weight': 3})
        >>> partition(params, lambda name, value: value > 1)
        ({'encoder.bias': 2, 'head.weight': 3}, {'encoder.weight': 1})

    Source: Equinox's ``partition``, on names.
    """
    chooser = _chooser(which)
    if unmatched := _explain_unmatched(params, chooser):
        raise ValueError(f"torchlayers: partition: {unmatched}")
    return _divide(params, chooser)


def combine(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merges dicts that have no name in common, such as those from :func:`partition`.

    Args:
        parts: dicts from names to values.
    Returns:
        A dict with all their entries.
    Raises:
        ValueError: a name is in more than one of them.
    Example:
        >>> params = {"weight": torch.tensor(2.0), "bias": torch.tensor(1.0)}
        >>> chosen, rest = partition(params, "weight")
        >>> combine({"weight": chosen["weight"] + 1}, rest)
        {'weight': tensor(3.), 'bias': tensor(1.)}
    """
    together: dict[str, Any] = {}
    for part in parts:
        if repeated := [name for name in part if name in together]:
            raise ValueError(
                f"torchlayers: combine: {repeated} are in several of the dicts; keep only one "
                "value for each name."
            )
        together.update(part)
    return together


def _chooser(which: Which) -> Chooser:
    if callable(which):
        return which
    patterns = (which,) if isinstance(which, str) else which
    return tuple((pattern, re.compile(fnmatch.translate(pattern))) for pattern in patterns)


def _divide(params: Mapping[str, Any], which: Chooser) -> tuple[dict[str, Any], dict[str, Any]]:
    chosen: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in params.items():
        if callable(which):
            is_chosen = which(name, value)
        else:
            is_chosen = any(pattern.match(name) for _, pattern in which)
        (chosen if is_chosen else rest)[name] = value
    return chosen, rest


def _explain_unmatched(params: Mapping[str, Any], which: Chooser) -> str:
    """Returns an error message if a pattern matches no name, or ""."""
    for text, pattern in () if callable(which) else which:
        if not any(pattern.match(name) for name in params):
            return f"{text!r} matches no name. {_list_names(params)}"
    return ""


def _list_names(params: Mapping[str, Any]) -> str:
    return f"The names are: {', '.join(map(str, params)) or 'none'}."
