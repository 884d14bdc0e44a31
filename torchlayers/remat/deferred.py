"""Functions that run later, with modules, variables and attributes as they are now.

NOTE [A function that runs again]
A checkpoint, the rules of a solution and those of a custom derivative call the user's function in
the backward pass. By then variables of an enclosing function may be bound to other values (in
``x = custom_root(lambda y: y**2 - x, x)`` to the solution itself), and modules have their own
tensors again after functional_call. So the function's closure is copied when the function is
passed, and with it the functions in it, and its globals if one of them is a tensor. Tensors that
functional_call has put into modules are put in again for each run, and so are the attributes of
modules, objects and classes, and the items of dicts and lists, that the function reaches through
its closure, arguments and globals, and the globals that it and the methods of these read. A list
that is empty or holds only plain values stays as it is, and so does an integer that is added to a
dict or an object: a function may count its calls there.
"""

import dis
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from torchlayers import _C
from torchlayers.core.code_objects import codes_in, names_in
from torchlayers.taps.loop_steps import thread

# A dict, a key and its value; a class or an object with slots, the name of an attribute, and its
# value; a dict, _KEYS, and its keys; or a list, None, and a copy of it.
Entry = tuple[Any, Any, Any]

_ABSENT: Any = object()
_KEYS: Any = object()
# What is nested deeper in containers and objects is not searched.
_DEPTH = 2
# Nor are containers of more items: they hold data.
_LONG = 1000


def deferred(func: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Returns a function that runs func as it would run now.

    Args:
        func: any callable.
        args: arguments that it will be called with, for the modules and objects in them.
    """
    reached = _Reached()
    copied: Callable[..., Any] = reached.copied(func)
    reached.search(args)
    entries, listeners = reached.entries, thread.listeners
    run = _C.with_tensors_put_in(copied)
    if run is copied and not entries and not listeners:
        return copied

    def run_as_then(*args: Any, **kwargs: Any) -> Any:
        with _put_in(entries), _tapped_by(listeners):
            return run(*args, **kwargs)

    run_as_then.__wrapped__ = copied  # type: ignore[attr-defined]
    return run_as_then


@contextmanager
def _put_in(entries: Sequence[Entry]) -> Iterator[None]:
    changed = [entry for entry in entries if not _is_there(*entry)]
    before: list[tuple[Any, Any, Any, Any]] = []
    for holder, name, value in changed:
        if name is _KEYS:
            added = holder.keys() - value
            new = [(holder, key, _ABSENT) for key in added if type(holder[key]) is not int]
            before += [(*entry, _replace(*entry)) for entry in new]
        else:
            before.append((holder, name, value, _replace(holder, name, value)))
    try:
        yield
    finally:
        for holder, name, value, latest in reversed(before):  # a name may be there twice
            if type(latest) is int and type(value) is int:
                # It may count the function's calls: this is one more.
                latest += _value(holder, name) - value
            _replace(holder, name, latest)


def _value(holder: Any, name: Any) -> Any:
    if isinstance(holder, (dict, type)):
        return (vars(holder) if isinstance(holder, type) else holder).get(name, _ABSENT)
    return getattr(holder, name, _ABSENT)


def _is_there(holder: Any, name: Any, value: Any) -> bool:
    if name is _KEYS:
        return bool(holder.keys() <= value)
    if isinstance(holder, list):
        return len(holder) == len(value) and all(map(operator.is_, holder, value))
    return _value(holder, name) is value


def _replace(holder: Any, name: Any, value: Any) -> Any:
    """Puts the value of an entry in, and returns what it replaces."""
    if isinstance(holder, list):
        before, holder[:] = [*holder], value
        return before
    before = _value(holder, name)
    if isinstance(holder, dict):
        if value is _ABSENT:
            holder.pop(name, None)
        else:
            holder[name] = value
    elif value is not _ABSENT:
        (type if isinstance(holder, type) else object).__setattr__(holder, name, value)
    elif before is not _ABSENT:
        (type if isinstance(holder, type) else object).__delattr__(holder, name)
    return before


@contextmanager
def _tapped_by(listeners: tuple[Any, ...]) -> Iterator[None]:
    """A value that is tapped for its gradient is differentiated when it is recomputed, too."""
    current, thread.listeners = thread.listeners, listeners
    try:
        yield
    finally:
        thread.listeners = current


class _Reached:
    """Copies a function, and collects the attributes of what it reaches.

    Attributes:
        entries: the attributes.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._copies: dict[int, Any] = {}
        self._searched: set[int] = set()
        # The names that functions read, and the methods of names that none has read yet.
        self._names: set[str] = set()
        self._methods: dict[str, list[types.FunctionType]] = {}

    def copied(self, value: Any) -> Any:
        """Returns the value with a copy of each function in it, and searches it."""
        if id(value) in self._copies:
            return self._copies[id(value)]
        if isinstance(value, types.FunctionType):
            return self._copied_function(value)
        if isinstance(value, functools.partial) and type(value) is functools.partial:
            arguments = [self.copied(element) for element in value.args]
            keywords = {name: self.copied(element) for name, element in value.keywords.items()}
            return functools.partial(self.copied(value.func), *arguments, **keywords)
        if isinstance(value, tuple):
            parts = [self.copied(element) for element in value]
            if all(part is element for part, element in zip(parts, value, strict=True)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        self.search(value)
        return value

    def _copied_function(self, func: types.FunctionType) -> Any:
        names = func.__globals__
        self._search_globals(func)
        reads_tensor = any(isinstance(names.get(x), Tensor) for x in _names_read(func.__code__))
        if reads_tensor and not _globals_assigned(func.__code__):
            names = {**names}
        elif not func.__closure__:
            return func
        closure, assigned = func.__closure__ or (), _variables_assigned(func.__code__)
        cells = tuple(
            cell if name in assigned else types.CellType()
            for name, cell in zip(func.__code__.co_freevars, closure, strict=True)
        )
        copy = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, cells)
        copy.__kwdefaults__ = func.__kwdefaults__
        copy.__dict__ = func.__dict__  # shared: a function may count its calls there
        self._copies[id(func)] = copy  # before its closure, which may hold it
        for cell, original in zip(cells, closure, strict=True):
            try:
                if cell is not original:
                    cell.cell_contents = self.copied(original.cell_contents)
            except ValueError:  # not assigned yet
                continue
        return copy

    def _search_globals(self, func: types.FunctionType) -> None:
        """Searches the globals that a function reads, and functions of the same file among them,
        with their closures."""
        names = func.__globals__
        if id(func) in self._searched or _is_of_library(names.get("__name__")):
            return
        self._searched.add(id(func))
        for name in _names_read(func.__code__):
            self._search_methods(name)
            value = names.get(name, _ABSENT)
            if value is _ABSENT:
                continue
            if not isinstance(value, _DEFINED_ONCE):
                self.entries.append((names, name, value))
            if isinstance(value, types.FunctionType) and value.__globals__ is names:
                self._search_closure(value)
                self._search_globals(value)
            else:
                self.search(value)

    def _search_methods(self, name: str) -> None:
        """Searches the methods of this name of all classes that are reached, now or later."""
        self._names.add(name)
        for method in self._methods.pop(name, ()):
            self._search_closure(method)
            self._search_globals(method)

    def _search_closure(self, func: types.FunctionType) -> None:
        for cell in func.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if isinstance(value, types.FunctionType) and id(value) not in self._searched:
                self._search_closure(value)
                self._search_globals(value)
            else:
                self.search(value)

    def search(self, value: Any, depth: int = 0) -> None:
        """Collects the attributes of modules and objects in the value."""
        if isinstance(value, _PLAIN) or depth > _DEPTH or id(value) in self._searched:
            return
        if isinstance(value, types.MethodType):
            self._search_methods(value.__name__)
            self.search(value.__self__, depth)
        elif isinstance(value, (tuple, list, set, dict)):
            if len(value) <= _LONG:
                self._searched.add(id(value))
                self._collect_of_container(value)
                for element in [*value.values()] if isinstance(value, dict) else [*value]:
                    self.search(element, depth + 1)
        elif isinstance(value, nn.Module):
            self._collect_of_module(value)
        elif isinstance(value, type):
            self._collect_of_class(value, depth)
        elif not _is_internal(type(value).__module__):
            self._searched.add(id(value))
            self._collect_of_class(type(value), depth)
            names = getattr(value, "__dict__", None)
            if isinstance(names, dict):
                self._collect(names)
                for element in [*names.values()]:
                    self.search(element, depth + 1)
            for name in _slots_of(type(value)):
                element = getattr(value, name, _ABSENT)
                self.entries.append((value, name, element))
                self.search(element, depth + 1)

    def _collect_of_class(self, kind: type, depth: int) -> None:
        """Collects the attributes of a class and its bases, and methods that may be called."""
        for base in kind.__mro__:
            if not base.__flags__ & _MAY_CHANGE or id(base) in self._searched:
                continue
            self._searched.add(id(base))
            if _is_internal(base.__module__):
                continue
            for name, value in [*vars(base).items()]:
                read_by = _METHOD_OF.get(type(value))
                method = value if read_by is None else read_by(value)
                if type(method) is types.FunctionType:
                    self._methods.setdefault(name, []).append(method)
                    if name in self._names or _is_called_by_syntax(name):
                        self._search_methods(name)
                elif not (name.startswith("__") or hasattr(value, "__get__")):
                    self.entries.append((base, name, value))
                    self.search(value, depth + 1)

    def _collect_of_module(self, module: nn.Module) -> None:
        if id(module) in self._searched:
            return
        self._searched.add(id(module))
        self._collect_of_class(type(module), 0)
        names = vars(module)
        self._collect(names)
        for tensors in ("_parameters", "_buffers", "_modules"):
            if names.get(tensors):
                self._collect(names[tensors])
        for child in (names.get("_modules") or {}).values():
            if child is not None:
                self._collect_of_module(child)
        for name in [*names.keys() - _MODULES_NAMES]:
            self.search(names[name], 1)

    def _collect_of_container(self, container: Any) -> None:
        if isinstance(container, dict):
            self._collect(container)
        elif isinstance(container, list) and any(not _is_counted(item) for item in container):
            self.entries.append((container, None, [*container]))

    def _collect(self, names: dict[Any, Any]) -> None:
        self.entries.append((names, _KEYS, frozenset(names)))
        self.entries += [(names, name, value) for name, value in names.items()]


# Values whose attributes are not collected.
_PLAIN = (Tensor, int, float, complex, str, bytes, types.ModuleType, types.FunctionType)
# Global names that are not bound again.
_DEFINED_ONCE = (types.ModuleType, type)
# Methods that each class has: none of them is what a class is called for.
_OF_ALL_CLASSES = frozenset(dir(object))
# The function behind a member of a class.
_METHOD_OF: dict[type, Callable[[Any], Any]] = {
    staticmethod: operator.attrgetter("__func__"),
    classmethod: operator.attrgetter("__func__"),
    property: operator.attrgetter("fget"),
    functools.cached_property: operator.attrgetter("func"),
}
# Of a class that Python code defines (Py_TPFLAGS_HEAPTYPE).
_MAY_CHANGE = 1 << 9


# The attributes that each module has.
_MODULES_NAMES = frozenset(vars(nn.Module()))


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            for name, descriptor in vars(base).items():
                if isinstance(descriptor, types.MemberDescriptorType):
                    yield name


def _is_counted(item: Any) -> bool:
    """Whether a function may have appended it to a list to count or to describe its calls."""
    return item is None or isinstance(item, (int, str, bytes))


def _is_internal(module: Any) -> bool:
    """Whether a module is torch's or ours: what is defined there holds no state of the user's."""
    return isinstance(module, str) and module.partition(".")[0] in ("torch", "torchlayers")


def _is_called_by_syntax(method: str) -> bool:
    """Whether code may call a method without its name."""
    return method == "forward" or (method.startswith("__") and method not in _OF_ALL_CLASSES)


def _is_of_library(module: Any) -> bool:
    """Whether a module is one of Python's, or internal: its globals stay as they are."""
    return _is_internal(module) or (
        isinstance(module, str) and module.partition(".")[0] in sys.stdlib_module_names
    )


@functools.lru_cache(maxsize=512)
def _names_read(code: types.CodeType) -> tuple[str, ...]:
    """The names that the code may read as globals and does not assign to."""
    assigned = _globals_assigned(code)
    return tuple(name for name in names_in(code) if name not in assigned)


@functools.lru_cache(maxsize=512)
def _globals_assigned(code: types.CodeType) -> frozenset[str]:
    return frozenset(_names_of(code, "STORE_GLOBAL", "DELETE_GLOBAL"))


@functools.lru_cache(maxsize=512)
def _variables_assigned(code: types.CodeType) -> frozenset[str]:
    """The variables of enclosing functions that the code assigns to: these are not copied."""
    return frozenset(_names_of(code, "STORE_DEREF", "DELETE_DEREF")).intersection(code.co_freevars)


def _names_of(code: types.CodeType, *operations: str) -> Iterator[str]:
    """The names in these instructions of the code and the code inside it."""
    for inner in codes_in(code):
        for instruction in dis.get_instructions(inner):
            if instruction.opname in operations:
                yield instruction.argval
