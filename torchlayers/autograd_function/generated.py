"""Functions generated from a Function, each kept with the class that it was generated from.

Generating a class takes longer than applying it, so it is done once. It is kept on the class
itself, so that both are let go together.
"""

from collections.abc import Callable, Hashable
from typing import Any

_ATTRIBUTE = "_torchlayers_generated"
_LIMIT = 64  # vmap generates one for each batch size and in_dims

# What is read off the class of the Function that is applied.
_INHERITED = ("generate_vmap_rule", "clear_saved_tensors_on_access", "boxed_grads_call")


def of(function: Any, key: Hashable, generate: Callable[[Any], Any]) -> Any:
    """generate(function), kept under the key, which may turn out not to be hashable.

    generate_vmap_rule may be set later, or from outside, so it is a part of the key.
    """
    key = (key, function.generate_vmap_rule)
    kept = function.__dict__.get(_ATTRIBUTE)
    if kept is None:
        kept = {}
        setattr(function, _ATTRIBUTE, kept)
    try:
        return kept[key]
    except KeyError:
        if len(kept) >= _LIMIT:
            kept.clear()
        made = kept[key] = generate(function)
        return made
    except TypeError:
        return generate(function)


def function_class(base: type, source: Any, **methods: Callable[..., Any]) -> Any:
    """A Function of these static methods, with the source's name and flags."""
    flags = {flag: getattr(source, flag) for flag in _INHERITED if hasattr(source, flag)}
    static = {name: staticmethod(method) for name, method in methods.items()}
    body = {"__module__": source.__module__, **flags, **static}
    return type(base)(source.__name__, (base,), body)
