"""The Python state that a function can reach before a capture: variables, attributes, items."""

import collections
import copy
import functools
import gc
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as modules

from torchlayers.compiler.capture.bytecode import is_library, is_user_code
from torchlayers.compiler.capture.opaque_state import OpaqueState, all_random_state, state_of
from torchlayers.compiler.capture.traced_floats import TracedFloat
from torchlayers.core.code_objects import names_in
from torchlayers.core.torch_private import FakeTensor, functorch, is_wrapped

_Cached = functools._lru_cache_wrapper
ITEMS = (list, dict, set, collections.deque)
# The tables of a module whose hooks its calls and their backward passes run.
CALLED_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = tuple(f"_global{name}" for name in CALLED_HOOKS)
_MAX_DEPTH = 6  # the number of steps from the function that the search goes
_MANY = 20_000  # and the number of objects that it visits
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class is defined in Python
ABSENT = object()


class Slots(NamedTuple):
    """The attributes that an object has in slots, not in a dict."""

    thing: Any
    names: frozenset[str]

    def now(self) -> dict[str, Any]:
        return {name: getattr(self.thing, name) for name in self.names if hasattr(self.thing, name)}


class StatePlace(NamedTuple):
    """A place that can be read and set; the names of the kinds are those of GuardedPlace.

    Attributes:
        path: the items and attributes from what the holder has under the key.
    """

    kind: str
    holder: Any
    key: Any
    path: tuple[tuple[str, Any], ...] = ()

    def reader(self) -> Callable[[], Any]:
        """Returns ``read``, for most places as one look-up."""
        is_item = self.kind == "items" and not self.path
        return functools.partial(self.holder.get, self.key) if is_item else self.read

    def read(self) -> Any:
        """Returns the value; None if there is none."""
        value = self._first()
        try:
            for step, key in self.path:
                value = value[key] if step == "item" else getattr(value, key)
        except (LookupError, TypeError, AttributeError):
            return None
        return value

    def _first(self) -> Any:
        holder: Any = self.holder
        if self.kind == "list":
            return holder[self.key] if self.key < len(holder) else None
        if self.kind == "cell":
            return holder.cell_contents
        if self.kind == "asked":
            return holder()
        return (vars(holder) if self.kind == "class" else holder).get(self.key)

    def put(self, value: Any) -> None:
        """Sets the value; a container or an object around it is replaced by a copy."""
        value = _with_part(self._first(), self.path, value)
        if self.kind == "cell":
            self.holder.cell_contents = value
        elif self.kind == "class":
            setattr(self.holder, self.key, value)
        elif self.kind == "asked":
            thing, name, _ = self.holder.args
            object.__setattr__(thing, name, value)
        else:
            self.holder[self.key] = value


def _with_part(whole: Any, path: tuple[tuple[str, Any], ...], part: Any) -> Any:
    if not path:
        return part
    (step, key), *rest = path
    inner = whole[key] if step == "item" else getattr(whole, key)
    inner = _with_part(inner, tuple(rest), part)
    if isinstance(whole, tuple):
        items = [*whole[:key], inner, *whole[key + 1 :]]
        return whole._make(items) if hasattr(whole, "_make") else type(whole)(items)
    whole = copy.copy(whole)
    if step == "item":
        whole[key] = inner
    else:
        object.__setattr__(whole, key, inner)
    return whole


class HolderSnapshot(NamedTuple):
    """An object that holds values by keys, and the values before the capture.

    Attributes:
        holder: a dict, a list, a set, a deque, a cell, a class or the slots of an object.
        before: the values; for a list or a deque, by their places.
        name: of the holder in messages; ends with a dot for attributes, empty for globals.
    """

    holder: Any
    before: dict[Any, Any]
    name: str

    @classmethod
    def take(cls, holder: Any, name: str) -> "HolderSnapshot":
        return cls(holder, _values_of(holder), name)

    def forgetting(self) -> "HolderSnapshot":
        """Returns this without the values."""
        return self._replace(before=dict.fromkeys(self.before) if not self.name else {})

    @property
    def is_container(self) -> bool:
        """Whether it holds items, not attributes or variables."""
        return bool(self.name) and not self.name.endswith(".") and isinstance(self.holder, ITEMS)

    def now(self) -> dict[Any, Any]:
        if self.name == "":  # a module's globals
            return {key: self.holder[key] for key in self.before if key in self.holder}
        return _values_of(self.holder)

    def changed(self) -> list[Any]:
        """Returns the keys whose values differ; the order of a dict is no difference."""
        now, before = self.now(), self.before
        return [
            key for key in {**before, **now} if before.get(key, ABSENT) is not now.get(key, ABSENT)
        ]

    def path(self, key: Any) -> str:
        if isinstance(self.holder, types.CellType):
            return self.name
        is_name = self.name.endswith(".") or not self.name
        return f"{self.name}{key}" if is_name else f"{self.name}[...]"

    def put(self, key: Any, value: Any) -> None:
        """Sets a value, or removes it if the value is ABSENT."""
        holder: Any = self.holder
        if isinstance(holder, types.CellType):
            if value is ABSENT:
                del holder.cell_contents
            else:
                holder.cell_contents = value
        elif isinstance(holder, (type, Slots)):
            thing = holder.thing if isinstance(holder, Slots) else holder
            put = type.__setattr__ if isinstance(thing, type) else object.__setattr__
            delattr(thing, key) if value is ABSENT else put(thing, key, value)
        elif value is not ABSENT:
            setter_of(holder)(holder, key, value)
        elif isinstance(holder, dict) and key in holder:
            _base_of(holder).__delitem__(holder, key)

    def put_items(self, values: dict[Any, Any]) -> None:
        """Replaces all items of a container."""
        holder: Any = self.holder
        base = _base_of(holder)
        base.clear(holder)
        if isinstance(holder, dict):
            for key, value in values.items():
                base.__setitem__(holder, key, value)
        elif isinstance(holder, set):
            base.update(holder, values.values())
        else:
            base.extend(holder, values.values())

    def place(self, key: Any) -> StatePlace:
        holder = self.holder
        if isinstance(holder, Slots):
            return StatePlace("asked", functools.partial(getattr, holder.thing, key, None), "")
        kinds: list[tuple[type, str]] = [
            (types.CellType, "cell"),
            (type, "class"),
            (list, "list"),
            (collections.deque, "list"),
        ]
        kind = next((kind for of, kind in kinds if isinstance(holder, of)), "items")
        return StatePlace(kind, holder, key)

    def restore(self, keys: Sequence[Any]) -> None:
        """Restores the values of these keys; of a container, all items and their order."""
        if self.is_container:
            self.put_items(self.before)
            return
        for key in keys:
            self.put(key, self.before.get(key, ABSENT))


def _base_of(container: Any) -> Any:
    """Returns the class whose methods change a container without a user's overrides."""
    bases = (collections.OrderedDict, *ITEMS)
    return next(base for base in bases if isinstance(container, base))


def setter_of(container: Any) -> Callable[[Any, Any, Any], None]:
    """Returns the ``__setitem__`` of a container."""
    return _base_of(container).__setitem__  # type: ignore[no-any-return]


def _values_of(holder: Any) -> dict[Any, Any]:
    if isinstance(holder, types.CellType):
        try:
            return {"": holder.cell_contents}
        except ValueError:  # not set
            return {}
    if isinstance(holder, (list, collections.deque)):
        return dict(enumerate(holder))
    if isinstance(holder, set):
        return {id(each): each for each in holder}
    if isinstance(holder, Slots):
        return holder.now()
    return dict(vars(holder)) if isinstance(holder, type) else dict(holder)


class ReachableState:
    """The state that a function can reach, before capture.

    Args:
        func: the function.
        given: its arguments.

    Attributes:
        holders: what holds values.
        opaque: iterators, random generators and arrays, with their states.
        names: for each container, by id, the names under which it can be loaded, each with the
            number of subscripts that follow: ``("terms", 1)`` for ``self.terms[0]``.
    """

    def __init__(self, func: Callable[..., Any], given: Sequence[Any]) -> None:
        self._seen: dict[int, Any] = {}
        self._caches: list[_Cached[Any]] = []
        self.holders: list[HolderSnapshot] = []
        self.opaque: list[tuple[OpaqueState, Any]] = []
        self.random = [(state, state.get()) for state in all_random_state()]
        self.names: dict[int, set[tuple[str, int]]] = {}
        todo = collections.deque[tuple[Any, str, int]]([(func, "", 0)])  # the nearest first
        todo += [(each, type(each).__name__, 1) for each in given if not isinstance(each, Tensor)]
        todo += [(hook, name, 1) for hook, name in _user_hooks(vars(modules), _HOOKS_OF_ALL)]
        while todo and len(self._seen) < _MANY:
            thing, name, far = todo.popleft()
            if isinstance(thing, ITEMS):
                last = name.rpartition(".")[2]
                loaded = last.partition("[")[0], last.count("[")
                self.names.setdefault(id(thing), set()).add(loaded)
            if id(thing) not in self._seen and far <= _MAX_DEPTH:
                self._seen[id(thing)] = thing
                for value, path in self._values(thing, name):
                    is_near = _is_child(thing, value) or _calls(thing, value)
                    todo.append((value, path, far if is_near else far + 1))

    def existed(self, thing: Any) -> bool:
        """Whether an object was reachable before the capture."""
        return id(thing) in self._seen

    def clear_caches(self) -> None:
        """Drops results that functools has cached if they are fake tensors."""
        for cache in self._caches:
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
            used = {key: variables.get(key, ABSENT) for key in loaded}
            self.holders.append(HolderSnapshot(variables, used, ""))
            yield from ((value, key) for key, value in used.items())
            yield from ((value, key) for key, value in vars(thing).items())
            yield from _defaults(thing)
            imported = [value for value in used.values() if isinstance(value, types.ModuleType)]
            yield from _functions_in(imported, loaded)
        elif isinstance(thing, _Cached):
            self._caches.append(thing)
            yield thing.__wrapped__, name
        elif isinstance(thing, types.MethodType):
            yield thing.__func__, name
            yield thing.__self__, "self"
        elif isinstance(thing, functools.partial):
            yield from ((each, name) for each in (thing.func, *thing.args))
        elif isinstance(thing, types.CellType):
            self._take(thing, name)
            yield from ((value, name) for value in self.holders[-1].before.values())
        elif isinstance(thing, ITEMS):
            self._take(thing, name or f"a {type(thing).__name__}")
            if len(thing) <= _MANY and not isinstance(thing, set):
                items = self.holders[-1].before.items()
                yield from ((value, f"{name}[{key!r:.20}]") for key, value in items)
        elif isinstance(thing, tuple):
            yield from ((value, f"{name}[{i}]") for i, value in enumerate(thing[:_MANY]))
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


def unwrapped(value: Any) -> Any:
    """Returns the tensor below layers that have ended."""
    while isinstance(value, Tensor) and is_wrapped(value):
        value = functorch.get_unwrapped(value)
    return value


def holds_fake(value: Any, depth: int = 0) -> bool:
    """Whether a value is a fake tensor, or holds one in items, attributes or variables."""
    if type(value) is TracedFloat:
        return True
    if isinstance(value, Tensor):
        return isinstance(unwrapped(value), FakeTensor)
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, dict):
        inner = [*value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        inner = [*value]
    elif isinstance(value, types.FunctionType):
        inner = [*(value.__closure__ or ()), *(value.__defaults__ or ())]
    elif isinstance(value, (type, types.ModuleType, Module)):
        inner = []
    else:
        inner = gc.get_referents(value)
    return len(inner) <= _MANY and any(holds_fake(each, depth + 1) for each in inner)


def is_plain_object(value: Any) -> bool:
    """Whether an object has attributes alone: it is made by its class without arguments."""
    kind = type(value)
    if kind in (object, types.SimpleNamespace):
        return True
    makes: Any = kind.__new__
    return makes is object.__new__ and bool(kind.__flags__ & _HEAP)


def is_user_class(kind: Any) -> bool:
    return not is_library(kind.__module__ or "")


def slots_of(kind: type) -> frozenset[str]:
    """Returns the names of the slots of a user's class."""
    found: set[str] = set()
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        if not is_library(each.__module__):
            found.update((slots,) if isinstance(slots, str) else slots)
    return frozenset(found - {"__dict__", "__weakref__"})


def _has_attributes(thing: Any) -> bool:
    return (
        isinstance(getattr(thing, "__dict__", None), dict)  # list[int] has its class's
        and not isinstance(thing, (type, types.ModuleType, FakeTensor))
        and type(thing).__module__ not in ("builtins", "functools")
    )
