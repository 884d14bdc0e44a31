"""Objects that hold Python state: dicts, lists, sets, deques, cells, classes and slots."""

import collections
import copy
import functools
import gc
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

from torchlayers.compiler.capture.bytecode import is_library
from torchlayers.compiler.capture.values.number_operands import is_conversion
from torchlayers.compiler.capture.values.traced_numbers import HostNumber, TensorNumber
from torchlayers.core.torch_private import FakeTensor, functorch, is_wrapped

ITEMS = (list, dict, set, collections.deque)
MANY = 20_000  # items of a container, or objects that are visited
MAX_DEPTH = 6  # the number of steps from an object that a search goes
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
ABSENT = object()


class StandIn:
    """Stands for an object, whose class it shows, in the places where a function finds it."""

    def __init__(self, original: Any) -> None:
        self.original = original

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def original_of(value: Any) -> Any:
    """Returns the object that a stand-in stands for, and anything else as it is."""
    return value.original if issubclass(type(value), StandIn) else value


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

    @property
    def identity(self) -> Any:
        """Equal for the same place; holders that are equal may be two."""
        if self.kind == "asked":  # by a function that is made anew
            return id(self.holder.args[0]), self.holder.args[1], self.path
        return id(self.holder), self.key, self.path

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
            return holder[self.key] if -len(holder) <= self.key < len(holder) else None
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
        return {id(value): value for value in holder}
    if isinstance(holder, Slots):
        return holder.now()
    return dict(vars(holder)) if isinstance(holder, type) else dict(holder)


def global_of(variables: dict[str, Any], name: str) -> Any:
    """Returns a module's variable, ABSENT if it has none; see conversions_traced."""
    value = variables.get(name, ABSENT)
    return ABSENT if is_conversion(value) else value


def unwrapped(value: Any) -> Any:
    """Returns the tensor below layers that have ended."""
    while isinstance(value, Tensor) and is_wrapped(value):
        value = functorch.get_unwrapped(value)
    return value


def holds_fake(value: Any, depth: int = 0) -> bool:
    """Whether a value is a fake tensor, or holds one in items, attributes or variables."""
    if type(value) is TensorNumber:
        return True
    if issubclass(type(value), (HostNumber, StandIn)):
        return False
    if isinstance(value, Tensor):
        return isinstance(unwrapped(value), FakeTensor)
    if depth > MAX_DEPTH:
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
    return len(inner) <= MANY and any(holds_fake(member, depth + 1) for member in inner)


def is_plain_object(value: Any) -> bool:
    """Whether an object has attributes alone: it is made by its class without arguments."""
    kind = type(value)
    if kind in (object, types.SimpleNamespace):
        return True
    makes: Any = kind.__new__
    return makes is object.__new__ and is_defined_in_python(kind)


def is_defined_in_python(kind: type) -> bool:
    return bool(kind.__flags__ & _HEAP)


def is_user_class(kind: Any) -> bool:
    return not is_library(kind.__module__ or "")


def slots_of(kind: type) -> frozenset[str]:
    """Returns the names of the slots of a user's class."""
    names: set[str] = set()
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        if not is_library(base.__module__):
            names.update((slots,) if isinstance(slots, str) else slots)
    return frozenset(names - {"__dict__", "__weakref__"})
