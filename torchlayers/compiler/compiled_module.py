"""What is compiled of a module is used in the module's place: in others, by optimizers, on disk."""

import functools
import types
from typing import Any

from torch._guards import CompileContext
from torch.nn import Module

from torchlayers import _C
from torchlayers.compiler.compiled_function import Compiled

_TABLES = ("_modules", "_parameters", "_buffers")


class CompiledModule(Compiled):
    """A module that is called compiled, and is the module itself in all else.

    Its class is the module's to isinstance, and its attributes are the module's, also when they are
    set: as a part of another module it has the names, the parameters and the hooks of the module.
    """

    _func: Module

    def __init__(self, func: Module, *rest: Any, **named: Any) -> None:
        super().__init__(func, *rest, **named)
        # Where functional_call puts tensors in.
        vars(self).update({name: getattr(func, name) for name in _TABLES})

    def _class(self) -> type:
        """Dynamo, which asks for modules too, reads what is called."""
        return type(self._func) if CompileContext.try_get() is None else CompiledModule

    __class__ = property(_class)  # as proxies of Python's say it; type() tells

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_func":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(self._func, name)
        if isinstance(value, types.MethodType) and value.__self__ is self._func:
            return self._method(value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._func, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._func, name)

    def _method(self, method: types.MethodType) -> Any:
        """The module's, which returns what is compiled where that returns the module: eval()."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return self if result is self._func else result

        return call


_C.call_at_once(CompiledModule)
