"""Functions generated from a Function, each kept with the class that it was generated from.

Generating a class takes longer than applying it, so it is done once. It is kept on the class
itself, so that both are let go together.
"""

from collections.abc import Callable, Hashable
from typing import Any

from torchlayers.autograd_function.context import RESERVED
from torchlayers.core.errors import FunctionError

_GENERATED = RESERVED + "_generated"  # on a class: those that were generated from it
_SOURCE = RESERVED + "_source"  # on one that was generated: the name of the user's
_LIMIT = 64  # vmap generates one for each batch size and in_dims

# What is read off the class of the Function that is applied.
_INHERITED = ("generate_vmap_rule", "clear_saved_tensors_on_access", "boxed_grads_call")


class _Generated(dict[Any, Any]):
    pass


def of(function: Any, key: Hashable, generate: Callable[[Any], Any]) -> Any:
    """generate(function), kept under the key, which may turn out not to be hashable.

    generate_vmap_rule may be set later, or from outside, so it is a part of the key.
    """
    key = (key, function.generate_vmap_rule)
    kept = function.__dict__.get(_GENERATED)
    if type(kept) is not _Generated:
        _check_names(function)
        kept = _Generated()
        setattr(function, _GENERATED, kept)
    try:
        return kept[key]
    except KeyError:
        if len(kept) >= _LIMIT:
            kept.clear()
        made = kept[key] = generate(function)
        return made
    except TypeError:
        return generate(function)


def function_class(base: type, name: str, source: Any, **methods: Callable[..., Any]) -> Any:
    """A Function of these static methods, with the source's flags.

    Its nodes are named after it (FooBackward), and programs that look at the names of nodes know
    those of torch.func: so does who chooses the name here.
    """
    flags = {flag: getattr(source, flag) for flag in _INHERITED if hasattr(source, flag)}
    static = {name: staticmethod(method) for name, method in methods.items()}
    body = {"__module__": source.__module__, _SOURCE: name_of(source), **flags, **static}
    return type(base)(name, (base,), body)


def name_of(function: Any) -> str:
    """What the user calls it: its name, or that of the Function that it was generated from."""
    name: str = vars(function).get(_SOURCE, function.__name__)
    return name


def is_generated(function: Any) -> bool:
    return _SOURCE in vars(function)


def _check_names(function: Any) -> None:
    """Raises FunctionError where a user's class has an attribute with a name of ours."""
    if is_generated(function):
        return
    for owner in function.__mro__:
        for name, value in vars(owner).items():
            if name.startswith(RESERVED) and type(value) is not _Generated:
                raise FunctionError(
                    f"torchlayers: {owner.__name__} has an attribute {name}, and names that begin "
                    f"with {RESERVED} are torchlayers' own. Give the attribute another name."
                )
