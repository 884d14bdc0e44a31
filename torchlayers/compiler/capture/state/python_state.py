"""The Python state that a function can reach before a capture: variables, attributes, items."""

import collections
import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as modules
from torch.optim import Optimizer

from torchlayers.compiler.capture.bytecode import is_library, is_user_code
from torchlayers.compiler.capture.state.cached_functions import Cached
from torchlayers.compiler.capture.state.opaque_state import OpaqueState, all_random_state, state_of
from torchlayers.compiler.capture.state.state_holders import (
    ITEMS,
    MANY,
    MAX_DEPTH,
    HolderSnapshot,
    Slots,
    global_of,
    holds_fake,
    is_user_class,
    slots_of,
)
from torchlayers.core.code_objects import names_in
from torchlayers.core.torch_private import FakeTensor

# The tables of a module whose hooks its calls and their backward passes run.
CALLED_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = tuple(f"_global{name}" for name in CALLED_HOOKS)


class PythonState:
    """The state that a function can reach, before capture.

    Args:
        func: the function.
        arguments: its arguments.

    Attributes:
        holders: what holds values.
        optimizers: if code that can run names ``step``.
        caches: functions with cached results.
        opaque: iterators, random generators and arrays, with their states.
        names: for each container, by id, the names under which it can be loaded, each with the
            number of subscripts that follow: ``("terms", 1)`` for ``self.terms[0]``.
    """

    def __init__(self, func: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._seen: dict[int, Any] = {}
        self.caches: list[Cached[Any]] = []
        self.optimizers: list[Optimizer] = []
        self.holders: list[HolderSnapshot] = []
        self.opaque: list[tuple[OpaqueState, Any]] = []
        self.random = [(state, state.get()) for state in all_random_state()]
        self.names: dict[int, set[tuple[str, int]]] = {}
        todo = collections.deque[tuple[Any, str, int]]([(func, "", 0)])  # the nearest first
        todo += [
            (argument, type(argument).__name__, 1)
            for argument in arguments
            if not isinstance(argument, Tensor)
        ]
        todo += [(hook, name, 1) for hook, name in _user_hooks(vars(modules), _HOOKS_OF_ALL)]
        while todo and len(self._seen) < MANY:
            thing, name, far = todo.popleft()
            if isinstance(thing, ITEMS):
                last = name.rpartition(".")[2]
                loaded = last.partition("[")[0], last.count("[")
                self.names.setdefault(id(thing), set()).add(loaded)
            if id(thing) not in self._seen and far <= MAX_DEPTH:
                self._seen[id(thing)] = thing
                for value, path in self._values(thing, name):
                    is_near = _is_child(thing, value) or _calls(thing, value)
                    todo.append((value, path, far if is_near else far + 1))

        if not any("step" in names_in(f.__code__) for f in self._functions()):
            self.optimizers.clear()

    def _functions(self) -> Iterator[types.FunctionType]:
        return (value for value in self._seen.values() if isinstance(value, types.FunctionType))

    def existed(self, thing: Any) -> bool:
        """Whether an object was reachable before the capture."""
        return id(thing) in self._seen

    def static_methods_of(self, cache: Any) -> Iterator[Any]:
        """Yields the static methods that a cached function is, of the classes that were found."""
        for holder in self.holders:
            if isinstance(holder.holder, type):
                for value in holder.before.values():
                    if isinstance(value, staticmethod) and value.__func__ is cache:
                        yield value

    def clear_caches(self) -> None:
        """Drops results that functools has cached if they are fake tensors."""
        for cache in self.caches:
            if any(map(holds_fake, gc.get_referents(cache))):
                cache.cache_clear()

    def _take(self, holder: Any, name: str) -> None:
        self.holders.append(HolderSnapshot.take(holder, name))

    def _values(self, thing: Any, name: str) -> Iterator[tuple[Any, str]]:
        if (state := state_of(thing, name)) is not None:
            self.opaque.append((state, state.get()))
        elif isinstance(thing, types.FunctionType):
            yield from zip(thing.__closure__ or (), thing.__code__.co_freevars, strict=True)
            variables = thing.__globals__
            loaded = names_in(thing.__code__)
            used = {key: global_of(variables, key) for key in loaded}
            self.holders.append(HolderSnapshot(variables, used, ""))
            yield from ((value, key) for key, value in used.items())
            yield from ((value, key) for key, value in vars(thing).items())
            yield from _defaults(thing)
            imported = [value for value in used.values() if isinstance(value, types.ModuleType)]
            yield from _functions_in(imported, loaded)
        elif isinstance(thing, Cached):
            self.caches.append(thing)
            yield thing.__wrapped__, name
        elif isinstance(thing, types.MethodType):
            yield thing.__func__, name
            yield thing.__self__, "self"
        elif isinstance(thing, types.BuiltinMethodType):
            yield thing.__self__, name
        elif isinstance(thing, weakref.ref):
            yield thing(), name
        elif isinstance(thing, functools.partial):
            yield from ((part, name) for part in (thing.func, *thing.args))
        elif isinstance(thing, types.CellType):
            self._take(thing, name)
            yield from ((value, name) for value in self.holders[-1].before.values())
        elif isinstance(thing, ITEMS):
            self._take(thing, name or f"a {type(thing).__name__}")
            if len(thing) <= MANY and not isinstance(thing, set):
                items = self.holders[-1].before.items()
                yield from ((value, f"{name}[{key!r:.20}]") for key, value in items)
        elif isinstance(thing, tuple):
            yield from ((value, f"{name}[{i}]") for i, value in enumerate(thing[:MANY]))
        elif isinstance(thing, type) and is_user_class(thing):
            self._take(thing, name + ".")
            yield from ((method, name) for method in _methods(thing))
            for key, value in vars(thing).items():
                if isinstance(value, ITEMS):
                    yield value, f"{name}.{key}"
        elif isinstance(thing, types.ModuleType) and not is_library(thing.__name__):
            self._take(vars(thing), name + ".")
        elif type(thing).__module__.startswith("torchlayers"):
            yield getattr(thing, "_func", None), name
        else:
            yield from self._attributes(thing, name or "self")

    def _attributes(self, thing: Any, name: str) -> Iterator[tuple[Any, str]]:
        if isinstance(thing, Optimizer):
            self.optimizers.append(thing)
        if slots := slots_of(type(thing)):
            self._take(Slots(thing, slots), name + ".")
            yield from ((value, f"{name}.{key}") for key, value in self.holders[-1].before.items())
        if not _has_attributes(thing):
            return
        tables = [vars(thing)]
        attributes: Any = [*tables[0].items()]
        if isinstance(thing, Module):
            tables += [thing._buffers, thing._parameters]
            yield from ((child, f"{name}.{key}") for key, child in thing._modules.items())
            yield from _user_hooks(vars(thing), CALLED_HOOKS)
            attributes = [pair for pair in attributes if not pair[0].startswith("_")]
        for table in tables:
            self._take(table, name + ".")
        yield from ((value, f"{name}.{key}") for key, value in attributes)
        yield from ((method, name) for method in _methods(type(thing)))
        yield type(thing), type(thing).__name__


def _user_hooks(tables: dict[str, Any], names: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """Yields the user's hooks in tables of these names; torch's and other libraries' store none."""
    for name in names:
        for hook in tables.get(name, {}).values():
            if not is_library(getattr(hook, "__module__", None) or type(hook).__module__):
                yield hook, "a hook"


def _defaults(function: types.FunctionType) -> Iterator[tuple[Any, str]]:
    values, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(values, names, strict=True)
    yield from ((value, name) for name, value in (function.__kwdefaults__ or {}).items())


def _is_child(thing: Any, value: Any) -> bool:
    """Whether a module holds a child module: the depth of a model does not count as steps."""
    return isinstance(value, Module) and isinstance(thing, Module)


def _calls(thing: Any, value: Any) -> bool:
    """Whether a user's function holds another: chains of calls do not count as steps."""
    if isinstance(thing, types.CellType):
        return isinstance(value, types.FunctionType)
    calls = isinstance(thing, types.FunctionType) and is_user_code(thing.__code__)
    return calls and isinstance(value, (types.FunctionType, types.CellType))


def _functions_in(
    imported: list[types.ModuleType], names: Sequence[str]
) -> Iterator[tuple[Any, str]]:
    """Yields the functions and classes of these names, a user's or with cached results."""
    for module in imported:
        for name in names:
            function = vars(module).get(name)
            is_users = isinstance(function, (types.FunctionType, type)) and is_user_class(function)
            if is_users or isinstance(function, Cached):
                yield function, name


def _methods(kind: type) -> Iterator[Any]:
    """Yields the functions of a user's class and of its bases."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in ("builtins", "torch", "torchlayers"):
            for value in vars(base).values():
                value = getattr(value, "__func__", value)  # of a static or a class method
                if isinstance(value, (types.FunctionType, Cached)):
                    yield value


def _has_attributes(thing: Any) -> bool:
    return (
        isinstance(getattr(thing, "__dict__", None), dict)  # list[int] has its class's
        and not isinstance(thing, (type, types.ModuleType, FakeTensor))
        and type(thing).__module__ not in ("builtins", "functools")
    )
