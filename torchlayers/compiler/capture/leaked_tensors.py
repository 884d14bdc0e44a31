"""Finds fake tensors that a captured function leaves in an attribute, a list or a variable.

They have no data, and Python runs once. If one replaces a tensor that nothing read, as when a
module stores its last result, each call stores the computed tensor there; otherwise capture raises
an error. Results cached by functools are dropped if they are fake tensors of the capture.
"""

import collections
import functools
import gc
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as modules

from torchlayers.compiler.capture.bytecode import is_library, is_user_code
from torchlayers.compiler.capture.opaque_state import OpaqueState, state_of
from torchlayers.core.code_objects import names_in
from torchlayers.core.torch_private import FakeTensor, functorch, is_wrapped

_Cached = functools._lru_cache_wrapper
_REMADE = ("_flat_weights",)  # a recurrent module rebuilds them from its parameters at each call
# The tables of a module whose hooks its calls and their backward passes run.
CALLED_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = tuple(f"_global{name}" for name in CALLED_HOOKS)
_MAX_DEPTH = 6  # the number of steps from the function that the search goes
_MANY = 20_000  # and the number of objects that it visits


class Leak(NamedTuple):
    """A fake tensor, or an object that holds one, left in ``holder[key]``; the value before it."""

    holder: dict[Any, Any]
    key: Any
    value: Any
    before: Any
    name: str
    is_attribute: bool


class _ContainerSnapshot(NamedTuple):
    """An object that holds values by keys, and the values before the capture."""

    holder: Any
    before: dict[Any, Any]
    name: str

    def now(self) -> dict[Any, Any]:
        if isinstance(self.holder, types.CellType):
            return {"": self.holder.cell_contents} if self.before else {}
        if isinstance(self.holder, (list, collections.deque)):
            return dict(enumerate(self.holder))
        if isinstance(self.holder, set):
            return {id(each): each for each in self.holder}
        if isinstance(self.holder, type):
            return dict(vars(self.holder))
        if self.name == "":  # a module's globals
            return {key: self.holder[key] for key in self.before if key in self.holder}
        return self.holder  # type: ignore[no-any-return]

    def leaks(self) -> Iterator[Leak]:
        for key, value in self.now().items():
            if value is not self.before.get(key, ABSENT) and _is_captured_tensor(value):
                yield Leak(
                    self.holder,
                    key,
                    value,
                    self.before.get(key),
                    self.path(key),
                    self.name.endswith(".") and isinstance(self.holder, dict),
                )

    def path(self, key: Any) -> str:
        if isinstance(self.holder, types.CellType):
            return self.name
        return (
            f"{self.name}{key}" if self.name.endswith(".") or not self.name else f"{self.name}[...]"
        )

    def put_back(self) -> None:
        leaks = [*self.leaks()]
        if not leaks:
            return
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = leaks[0].before
        elif isinstance(self.holder, list):
            self.holder[:] = self.before.values()
        elif isinstance(self.holder, (set, collections.deque)):
            self.holder.clear()
            for each in self.before.values():
                self.holder.add(each) if isinstance(self.holder, set) else self.holder.append(each)
        elif isinstance(self.holder, type):
            for leak in leaks:
                if leak.key in self.before:
                    setattr(self.holder, leak.key, leak.before)
                else:
                    delattr(self.holder, leak.key)
        else:
            for leak in leaks:
                if self.before.get(leak.key, ABSENT) is ABSENT:
                    del self.holder[leak.key]
                else:
                    self.holder[leak.key] = leak.before


ABSENT = object()


class ReachableState:
    """The state that a function can reach, before capture: variables and attributes of objects.

    Args:
        func: the function.
        given: its arguments.
    """

    def __init__(self, func: Callable[..., Any], given: Sequence[Any]) -> None:
        self._seen: dict[int, Any] = {}
        self._kept: list[_ContainerSnapshot] = []
        self._caches: list[_Cached[Any]] = []
        self.opaque: list[tuple[OpaqueState, Any]] = []  # with what they were
        todo = collections.deque[tuple[Any, str, int]]([(func, "", 0)])  # the nearest first
        todo += [(each, type(each).__name__, 1) for each in given if not isinstance(each, Tensor)]
        todo += [(hook, name, 1) for hook, name in _user_hooks(vars(modules), _HOOKS_OF_ALL)]
        while todo and len(self._seen) < _MANY:
            thing, name, far = todo.popleft()
            if id(thing) not in self._seen and far <= _MAX_DEPTH:
                self._seen[id(thing)] = thing
                for held, path in self._held(thing, name):
                    is_near = _is_child(thing, held) or _calls(thing, held)
                    todo.append((held, path, far if is_near else far + 1))

    def leaks(self) -> Iterator[Leak]:
        """Yields the fake tensors that the capture has left in this state."""
        return (leak for kept in self._kept for leak in kept.leaks() if leak.key not in _REMADE)

    @property
    def kept(self) -> list[_ContainerSnapshot]:
        return self._kept

    def put_back(self) -> None:
        """Removes the fake tensors that the capture has left in this state."""
        for kept in self._kept:
            kept.put_back()
        for cache in self._caches:
            if any(map(_is_captured_tensor, gc.get_referents(cache))):
                cache.cache_clear()

    def _held(self, thing: Any, name: str) -> Iterator[tuple[Any, str]]:
        if (state := state_of(thing, name)) is not None:
            self.opaque.append((state, state.get()))
        elif isinstance(thing, types.FunctionType):
            yield from zip(thing.__closure__ or (), thing.__code__.co_freevars, strict=True)
            variables = thing.__globals__
            names = names_in(thing.__code__)
            used = {key: variables.get(key, ABSENT) for key in names}
            self._kept.append(_ContainerSnapshot(variables, used, ""))
            yield from ((value, key) for key, value in used.items())
            yield from ((value, key) for key, value in vars(thing).items())
            modules = [value for value in used.values() if isinstance(value, types.ModuleType)]
            yield from _functions_in(modules, names)
        elif isinstance(thing, _Cached):
            self._caches.append(thing)
            yield thing.__wrapped__, name
        elif isinstance(thing, types.MethodType):
            yield thing.__func__, name
            yield thing.__self__, "self"
        elif isinstance(thing, functools.partial):
            yield from ((each, name) for each in (thing.func, *thing.args))
        elif isinstance(thing, types.CellType):
            try:
                held = thing.cell_contents
            except ValueError:  # not set yet
                return
            self._kept.append(_ContainerSnapshot(thing, {"": held}, name))
            yield held, name
        elif isinstance(thing, (list, dict, set, collections.deque)) and len(thing) > _MANY:
            return  # a data set, whose copy would take longer than the capture
        elif isinstance(thing, dict) and type(thing).__setitem__ is dict.__setitem__:
            self._kept.append(_ContainerSnapshot(thing, dict(thing), name or "a dict"))
            yield from ((value, f"{name}[{key!r:.20}]") for key, value in thing.items())
        elif isinstance(thing, (set, collections.deque)):
            self._kept.append(_ContainerSnapshot(thing, {}, name or f"a {type(thing).__name__}"))
            self._kept[-1].before.update(self._kept[-1].now())
        elif isinstance(thing, type) and is_user_class(thing):
            self._kept.append(_ContainerSnapshot(thing, dict(vars(thing)), name + "."))
            yield from ((method, name) for method in _methods(thing))
        elif isinstance(thing, types.ModuleType) and not is_library(thing.__name__):
            self._kept.append(_ContainerSnapshot(vars(thing), dict(vars(thing)), name + "."))
        elif isinstance(thing, list):
            self._kept.append(_ContainerSnapshot(thing, dict(enumerate(thing)), name or "a list"))
            yield from ((value, f"{name}[{i}]") for i, value in enumerate(thing))
        elif type(thing).__module__.startswith("torchlayers"):
            yield getattr(thing, "_func", None), name
        elif _has_attributes(thing):
            name = name or "self"
            tables = [vars(thing)]
            attributes: Any = tables[0].items()
            if isinstance(thing, Module):
                tables += [thing._buffers, thing._parameters]
                yield from ((child, f"{name}.{key}") for key, child in thing._modules.items())
                yield from _user_hooks(vars(thing), CALLED_HOOKS)
                attributes = [pair for pair in attributes if not pair[0].startswith("_")]
            self._kept += [_ContainerSnapshot(table, dict(table), name + ".") for table in tables]
            yield from ((value, f"{name}.{key}") for key, value in attributes)
            yield from ((method, name) for method in _methods(type(thing)))
            yield type(thing), type(thing).__name__


def _user_hooks(tables: dict[str, Any], names: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """Yields the user's hooks in tables of these names; torch's and other libraries' store none."""
    for name in names:
        for hook in tables.get(name, {}).values():
            if not is_library(getattr(hook, "__module__", None) or type(hook).__module__):
                yield hook, "a hook"


def _is_child(thing: Any, held: Any) -> bool:
    """Whether a module holds a child module: the depth of a model does not count as steps."""
    return isinstance(held, Module) and isinstance(thing, Module)


def _calls(thing: Any, held: Any) -> bool:
    """Whether a user's function holds another: chains of calls do not count as steps."""
    if isinstance(thing, types.CellType):
        return isinstance(held, types.FunctionType)
    calls = isinstance(thing, types.FunctionType) and is_user_code(thing.__code__)
    return calls and isinstance(held, (types.FunctionType, types.CellType))


def _functions_in(
    modules: list[types.ModuleType], names: Sequence[str]
) -> Iterator[tuple[Any, str]]:
    """Yields the functions and classes of these names, a user's or with cached results."""
    for module in modules:
        for name in names:
            found = vars(module).get(name)
            is_users = isinstance(found, (types.FunctionType, type)) and is_user_class(found)
            if is_users or isinstance(found, _Cached):
                yield found, name


def _methods(kind: type) -> Iterator[Any]:
    """Yields the functions of a user's class and of its bases."""
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] not in ("builtins", "torch", "torchlayers"):
            for value in vars(each).values():
                value = getattr(value, "__func__", value)  # of a static or a class method
                if isinstance(value, (types.FunctionType, _Cached)):
                    yield value


def _is_captured_tensor(value: Any, far: int = 0) -> bool:
    """Whether a value is a fake tensor, or holds one."""
    if isinstance(value, (list, tuple, dict)) and far < _MAX_DEPTH:
        held = value.values() if isinstance(value, dict) else value
        return any(_is_captured_tensor(each, far + 1) for each in held)
    while isinstance(value, Tensor) and is_wrapped(value):
        value = functorch.get_unwrapped(value)  # left by a layer that has ended
    return isinstance(value, FakeTensor)


def is_user_class(kind: Any) -> bool:
    return not is_library(kind.__module__ or "")


def _has_attributes(thing: Any) -> bool:
    return (
        isinstance(getattr(thing, "__dict__", None), dict)  # list[int] has its class's
        and not isinstance(thing, (type, types.ModuleType, FakeTensor))
        and type(thing).__module__ not in ("builtins", "functools")
    )
