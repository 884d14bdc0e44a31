"""Lists, deques and dicts that get longer at each call: a history of losses, results by step.

During a second capture a stand-in takes the place of such a container. It notes which items the
function reads, which calls then read before the graph runs, and those that it adds, which are added
after it. Anything else that the function does with the container makes the second capture fail.
"""

import collections
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from torchlayers.compiler.capture.state.guarded_place import is_constant
from torchlayers.compiler.capture.state.python_writes import PythonWrite
from torchlayers.compiler.capture.state.recipes import RecipeWriter
from torchlayers.compiler.capture.state.state_holders import HolderSnapshot, StandIn, StatePlace
from torchlayers.compiler.capture.state.structures import walk
from torchlayers.compiler.capture.values.traced_numbers import HostNumber, plain_number

GROWING = (list, collections.deque, dict, collections.OrderedDict, collections.defaultdict)


class UnknownContainerUseError(Exception):
    """A function does more with a container than its stand-in can note."""


def item(container: Any, key: Any) -> Any:
    return container[key]


def length(container: Any) -> int:
    return len(container)


def contains(container: Any, key: Any) -> bool:
    return key in container


class GrowingContainer(StandIn):
    """Stands for a container.

    Args:
        read: notes that a function of the container is read, and returns the number, traced.

    Attributes:
        tensors: those that were read, with their places.
        guarded_keys: of a dict, those with other values that were read, which are guarded.
    """

    def __init__(self, holder: HolderSnapshot, read: Callable[..., Any]) -> None:
        super().__init__(holder.holder)
        self.holder = holder
        self._number = read
        self.tensors: list[tuple[StatePlace, Tensor]] = []
        self.guarded_keys: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        raise UnknownContainerUseError(name)

    def __iter__(self) -> Iterator[Any]:
        raise UnknownContainerUseError

    def __len__(self) -> int:
        return plain_number(self.traced_length())  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.traced_length() > 0)

    def traced_length(self) -> Any:
        """Returns the number of items, which ``len`` can't return traced."""
        raise NotImplementedError

    def _read(self, key: Any) -> Any:
        value = self.original[key]
        if isinstance(value, Tensor):
            kind = "items" if isinstance(self.original, dict) else "list"
            self.tensors.append((StatePlace(kind, self.original, key), value))
            return value
        if type(value) not in (int, float):
            if not isinstance(self.original, dict):
                raise UnknownContainerUseError
            self.guarded_keys.append(key)
            return value
        number = self._number(item, self.original, key)
        number.compute(_has_kind, (number, type(value)))
        return number


def _has_kind(value: Any, kind: type) -> bool:
    return type(value) is kind


class GrowingSequence(GrowingContainer):
    """Stands for a list or a deque, of which the ends are read, to which items are added at the
    end, and from which they are dropped at the start."""

    def __init__(self, holder: HolderSnapshot, read: Callable[..., Any]) -> None:
        super().__init__(holder, read)
        self._added: list[Any] = []
        self._dropped = 0

    def traced_length(self) -> Any:
        if getattr(self.original, "maxlen", None) is not None:
            raise UnknownContainerUseError
        changed = len(self._added) - self._dropped
        return self._number(length, self.original) + changed

    def append(self, value: Any) -> None:
        self._added.append(value)

    def extend(self, values: Any) -> None:
        self._added.extend(values)

    def __iadd__(self, values: Any) -> "GrowingSequence":
        self._added.extend(values)
        return self

    def popleft(self) -> Any:
        value = self[0]
        self._dropped += 1
        return value

    def pop(self, index: int = -1) -> Any:
        if type(index) is int and index == 0 and isinstance(self.original, list):
            return self.popleft()
        if index != -1 or not self._added:
            raise UnknownContainerUseError
        return self._added.pop()

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int:
            raise UnknownContainerUseError
        if -len(self._added) <= index < 0:
            return self._added[index]
        place = index + (len(self._added) if index < 0 else self._dropped)
        is_limited = getattr(self.original, "maxlen", None) is not None
        if place >= len(self.original) or (index >= 0 and is_limited):
            raise UnknownContainerUseError
        return self._read(place)

    def writes(self, recipes: RecipeWriter) -> Iterator[PythonWrite]:
        """Yields what each call writes."""
        if self._added or self._dropped:
            items, name = [*map(recipes.write, self._added)], self.holder.path(0)
            yield PythonWrite(self.holder, None, "extend", items, name, self._dropped, True)


class GrowingDict(GrowingContainer):
    """Stands for a dict, in which items are set, by keys that may be numbers of each call."""

    def __init__(self, holder: HolderSnapshot, read: Callable[..., Any]) -> None:
        super().__init__(holder, read)
        self._set: list[tuple[Any, Any]] = []

    def traced_length(self) -> Any:
        if self._set:
            raise UnknownContainerUseError  # they may replace others
        return self._number(length, self.original)

    def __setitem__(self, key: Any, value: Any) -> None:
        is_number = type(key) is HostNumber
        parts = (part for _, part in walk(value, StatePlace("items", {}, "")))
        if is_number and any(isinstance(part, Tensor) and part.requires_grad for part in parts):
            raise UnknownContainerUseError  # autograd has to find it
        if not (is_number or is_constant(key)):
            raise UnknownContainerUseError
        self._set.append((key, value))

    def update(self, items: Any = (), **named: Any) -> None:
        for key, value in dict(items, **named).items():
            self[key] = value

    def __contains__(self, key: Any) -> bool:
        self._known(key)
        if any(key == other for other, _ in self._set):
            return True
        return bool(self._number(contains, self.original, key))

    def __getitem__(self, key: Any) -> Any:
        self._known(key)
        for other, value in reversed(self._set):
            if key == other:
                return value
        if key not in self.original:
            raise UnknownContainerUseError
        return self._read(key)

    def get(self, key: Any, default: Any = None) -> Any:
        is_there = key in self
        return self[key] if is_there else default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def _known(self, key: Any) -> None:
        is_any = any(type(other) is HostNumber for other, _ in self._set)
        if is_any or type(key) is HostNumber or not is_constant(key):
            raise UnknownContainerUseError

    def writes(self, recipes: RecipeWriter) -> Iterator[PythonWrite]:
        """Yields what each call writes."""
        if self._set:
            items = [(recipes.write(key), recipes.write(value)) for key, value in self._set]
            name = self.holder.path(0)
            yield PythonWrite(self.holder, None, "update", items, name, only_added=True)


def growing(holder: HolderSnapshot, read: Callable[..., Any]) -> Any:
    """Returns the stand-in of a container."""
    is_dict = isinstance(holder.holder, dict)
    return (GrowingDict if is_dict else GrowingSequence)(holder, read)
