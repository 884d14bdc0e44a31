"""Replaces a Python function of torch by its code, and changes no attribute of torch.

The function stays the object that torch defined, in every module that has imported it. NOTE
[Patches] in csrc/core/patches.h says when its code is replaced, and why its code.
"""

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torchlayers import _C
from torchlayers.core.private_names import lookup


def replace_code(path: str, make: Callable[[Any], Any]) -> None:
    """Registers ``make(function)`` in place of a function of torch; does nothing if torch lacks it.

    ``make`` gets a copy of the function, which keeps torch's code.
    """
    attribute = lookup(path, None)
    function = getattr(attribute, "__func__", attribute)  # of a class method
    if isinstance(function, FunctionType):
        _C.add_code_patch(function, _code_calling(make(_copy(function)), function.__code__))


def _copy(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _code_calling(replacement: Callable[..., Any], code: CodeType) -> CodeType:
    """Code that calls the replacement with its arguments, for a function that has this code.

    Python requires as many free variables, and programs tell functions of torch by their file.
    """
    names = ", ".join(code.co_freevars)
    source = f"""
def enclosing({names}):
    def call(*args, **kwargs):
        replacement = ...
        return replacement(*args, **kwargs)
        {names or "pass"}
    return call
"""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    ours: CodeType = namespace["enclosing"](*code.co_freevars).__code__
    constants = tuple(replacement if const is ... else const for const in ours.co_consts)
    place = {"co_filename": code.co_filename, "co_firstlineno": code.co_firstlineno}
    renamed = ours.replace(co_consts=constants, co_name=code.co_name, **place)  # type: ignore[arg-type]
    return (
        renamed.replace(co_qualname=code.co_qualname) if hasattr(code, "co_qualname") else renamed
    )
