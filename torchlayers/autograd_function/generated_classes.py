"""Caches the Functions generated from a user's Function.

Generating a class takes longer than applying it, so it is done once. The cache is an attribute of
the source class, so that both are freed together; torch's own classes, which stay, are not changed.
"""

from collections.abc import Callable, Hashable
from typing import Any

from torchlayers.autograd_function.context import RESERVED
from torchlayers.core.errors import FunctionError

_GENERATED = RESERVED + "_generated"  # on a source class: the classes generated from it
_SOURCE = RESERVED + "_source"  # on a generated class: the name of the user's class
_LIMIT = 64  # vmap generates one for each batch size and in_dims

# Flags that torch and the rules read from the class of the applied Function.
_INHERITED = ("generate_vmap_rule", "clear_saved_tensors_on_access", "boxed_grads_call")


class _Generated(dict[Any, Any]):
    pass


_of_torchs_classes: dict[Any, _Generated] = {}


def generate_cached(function: Any, key: Hashable, generate: Callable[[Any], Any]) -> Any:
    """Returns generate(function), cached by key unless the key is not hashable.

    generate_vmap_rule may be set after the class is defined, so it is part of the key.
    """
    key = (key, function.generate_vmap_rule)
    cache = _cache_of(function)
    try:
        return cache[key]
    except KeyError:
        if len(cache) >= _LIMIT:
            cache.clear()
        generated = cache[key] = generate(function)
        return generated
    except TypeError:
        return generate(function)


def _cache_of(function: Any) -> _Generated:
    if is_defined_by_torch(function) and not is_generated(function):
        return _of_torchs_classes.setdefault(function, _Generated())
    cache = function.__dict__.get(_GENERATED)
    if type(cache) is not _Generated:
        _check_names(function)
        cache = _Generated()
        setattr(function, _GENERATED, cache)
    return cache


def is_defined_by_torch(function: Any) -> bool:
    return function.__module__.partition(".")[0] == "torch"  # type: ignore[no-any-return]


def function_class(
    base: type, name: str, source: Any, **methods: Callable[..., Any] | None
) -> type[Any]:
    """Creates a Function class with these static methods, if not None, and the source's flags.

    Autograd nodes are named after the class (FooBackward). Programs that inspect node names expect
    those of torch.func, so callers choose `name` accordingly.
    """
    flags = {flag: getattr(source, flag) for flag in _INHERITED if hasattr(source, flag)}
    static = {name: staticmethod(method) for name, method in methods.items() if method}
    body = {"__module__": source.__module__, _SOURCE: name_of(source), **flags, **static}
    return type(base)(name, (base,), body)


def name_of(function: Any) -> str:
    """Returns the name for messages: the user's class name, also for a class generated from it."""
    name: str = vars(function).get(_SOURCE, function.__name__)
    return name


def is_generated(function: Any) -> bool:
    return _SOURCE in vars(function)


def _check_names(function: Any) -> None:
    """Raises FunctionError if a user's class has an attribute with a reserved name."""
    if is_generated(function):
        return
    for owner in function.__mro__:
        for name, value in vars(owner).items():
            if name.startswith(RESERVED) and type(value) is not _Generated:
                raise FunctionError(
                    f"torchlayers: {owner.__name__} has an attribute {name}, but names that begin "
                    f"with {RESERVED} are reserved for torchlayers. Rename the attribute."
                )
