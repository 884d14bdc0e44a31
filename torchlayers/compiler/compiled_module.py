"""Compiled modules, which can replace the original in other modules, in optimizers, on disk."""

import functools
import sys
import types
from typing import Any

from torch.nn import Module

from torchlayers import _C
from torchlayers.compiler.compiled_function import Compiled
from torchlayers.core.private_names import lookup
from torchlayers.core.tracing_state import is_tracing

_DYNAMO = "torch._dynamo.symbolic_convert"
_its_thread_state = functools.cache(lambda: lookup(f"{_DYNAMO}.tls", None))
_TABLES = ("_modules", "_parameters", "_buffers")


def _is_read_by_dynamo() -> bool:
    if _DYNAMO not in sys.modules:
        return False
    state = _its_thread_state()
    return is_tracing() if state is None else getattr(state, "current_tx", None) is not None


class CompiledModule(Compiled[..., Any]):
    """A module whose calls run compiled; in every other respect it acts as the original module.

    isinstance sees the original's class, and attributes are read from and set on the original: as a
    submodule it contributes the original's names, parameters and hooks.
    """

    _func: Module

    def __init__(self, func: Module, *rest: Any, **named: Any) -> None:
        super().__init__(func, *rest, **named)
        # functional_call swaps tensors in these tables.
        vars(self).update({name: getattr(func, name) for name in _TABLES})

    def _class(self) -> type:
        """Returns the original's class, except to Dynamo, which has to read Compiled.__call__."""
        return CompiledModule if _is_read_by_dynamo() else type(self._func)

    __class__ = property(_class)  # as in Python's proxies; type() still returns the real class

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
        """Wraps a method of the original: where that returns the module (eval()), returns self."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return self if result is self._func else result

        return call


_C.call_at_once(CompiledModule)
