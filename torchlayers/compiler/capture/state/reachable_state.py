"""Finds the Python state that code can reach by the names in it. NOTE [What is guarded]."""

import collections
import functools
import gc
import operator
import os
import sys
import types
import weakref
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import container
from torch.nn.modules import module as modules
from torch.optim import Optimizer

from torchlayers.compiler.capture.bytecode import (
    NameAccesses,
    code_of_attribute,
    is_library,
    is_user_code,
    keep_user_code,
    merge_accesses,
    name_accesses,
)
from torchlayers.compiler.capture.module_calls import ModuleCallHook
from torchlayers.compiler.capture.state.cached_functions import Cached
from torchlayers.compiler.capture.state.guarded_place import (
    GuardedPlace,
    contents,
    is_constant,
)
from torchlayers.compiler.capture.state.opaque_state import OpaqueState, state_of
from torchlayers.compiler.capture.state.python_state import CALLED_HOOKS
from torchlayers.compiler.capture.state.state_holders import (
    ABSENT,
    global_of,
    is_defined_in_python,
    slots_of,
)
from torchlayers.compiler.capture.values.number_operands import CONVERTED, REPLACED_IN_TORCH
from torchlayers.core.code_objects import codes_in

_MANY = 50_000  # places
_MANY_ITEMS = 20_000  # of a container
TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = tuple(name for name in vars(Module()) if name.endswith(("_hooks", "_with_kwargs")))
_GLOBAL_HOOKS = tuple(name for name in vars(modules) if name.startswith("_global_"))
# Names with which code reads and sets the states of random generators.
_OF_GENERATORS = {"seed", "getstate", "setstate", "get_state", "set_state", "bit_generator"}
# Names with which code iterates over everything that a module holds.
_WALKS = ("children", "modules", "parameters", "buffers")
_THROUGH = {"state_dict", "apply", *TABLES, *_WALKS, *(f"named_{name}" for name in _WALKS)}
_CONTAINERS = (
    container.Sequential,
    container.ModuleList,
    container.ModuleDict,
    container.ParameterList,
    container.ParameterDict,
    torch.nn.RNNBase,
)
_REMADE = "_flat_weights"  # a recurrent module rebuilds them from its parameters


class ReachabilityWalk:
    """A walk from the function, its globals and arguments to everything that its code can name."""

    def __init__(
        self, ran: Sequence[tuple[types.CodeType, dict[str, Any]]], drawn: Collection[int] = ()
    ) -> None:
        self._drawn = drawn
        self.places: list[GuardedPlace] = []
        self._ran = keep_user_code(ran)
        self._codes = {code for code, _ in self._ran}
        self._reads: NameAccesses = merge_accesses(self._codes)
        self._seen: dict[int, Any] = {}
        self._todo: collections.deque[tuple[Any, str]] = collections.deque()

    def _needs(self, state: OpaqueState) -> bool:
        """Whether a state is guarded: not what code only draws from, nor what calls read."""
        is_seeded = bool(_OF_GENERATORS & self._reads.attributes)
        if state.thing is None:
            return id(state.array) not in self._drawn
        return id(state.thing) not in self._drawn and (state.is_iterator or is_seeded)

    def globals(self) -> None:
        """Guards the module variables that the code that ran loads, and the modules it imports."""
        by_module: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for code, variables in self._ran:
            by_module.setdefault(id(variables), (variables, set()))[1].update(
                name_accesses(code).globals
            )
        for variables, names in by_module.values():
            held = {name: global_of(variables, name) for name in names if name[0] != "@"}
            for name in CONVERTED & held.keys():  # a capture that is going on may have set it
                if held[name] is ABSENT:
                    del held[name]
            self._add("items", variables, held, "global {}")
        for name in self._reads.imported:
            if not is_library(name) and (module := _imported(name)) is not None:
                self.go(module, name)

    def unreached(self) -> None:
        """Guards functions that ran and were not found yet: closures may be anywhere."""
        inner = {
            inner_code
            for code in self._codes
            for inner_code in codes_in(code)
            if inner_code is not code
        }
        found = {
            thing.__code__ for thing in self._seen.values() if isinstance(thing, types.FunctionType)
        }
        lost = {code for code in self._codes - inner - found if code.co_freevars}
        if not lost:
            return
        for function in gc.get_referrers(*lost):
            if isinstance(function, types.FunctionType) and function.__code__ in lost:
                self.go(function, function.__name__)

    def add_hooks_of_all(self) -> None:
        """Guards the global module hooks."""
        for name in _GLOBAL_HOOKS:
            table = getattr(modules, name)
            if isinstance(table, dict):
                held = {
                    key: hook for key, hook in table.items() if type(hook) is not ModuleCallHook
                }
                self._add("whole", table, held, "hook {} of all modules", ("torch", "hooks"))

    def go(self, thing: Any, name: str) -> None:
        """Guards everything that can be reached from an object that is itself always the same."""
        self._todo.append((thing, name))
        while self._todo:
            thing, name = self._todo.popleft()
            if id(thing) not in self._seen and len(self.places) < _MANY:
                self._seen[id(thing)] = thing
                self._look_at(thing, name)

    def _add(
        self,
        kind: str,
        holder: Any,
        held: dict[Any, Any],
        name: str,
        sizes: tuple[str, str] = ("", ""),
    ) -> None:
        if not held and kind in ("items", "class"):
            return
        keys = () if kind in ("list", "cell", "function", "object", "asked") else tuple(held)
        self.places.append(GuardedPlace(kind, holder, keys, tuple(held.values()), name, sizes))
        if kind != "object":  # its attributes are followed by their names
            self._todo += [
                (value, name.format(key)) for key, value in held.items() if value is not ABSENT
            ]

    def _look_at(self, thing: Any, name: str) -> None:
        if is_constant(thing) or thing is ABSENT:
            return
        if isinstance(thing, types.FunctionType):
            self._look_at_function(thing)
        elif isinstance(thing, types.MethodType):
            self._todo += [(thing.__self__, name or "self"), (thing.__func__, name)]
        elif isinstance(thing, Cached):
            self._todo.append((thing.__wrapped__, name))
        elif isinstance(thing, weakref.ref):
            self._todo.append((thing(), name))
        elif isinstance(thing, functools.partial):
            self._todo += [(part, name) for part in (thing.func, *thing.args)]
            self._add("whole", thing.keywords, dict(thing.keywords), f"{name} {{}}")
        elif isinstance(thing, types.ModuleType):
            if thing is os and {"environ", "getenv"} & self._reads.attributes:
                self._todo.append((os.environ, "os.environ"))
            if not is_library(thing.__name__) or thing.__name__.startswith("torch"):
                names = self._reads.attributes - REPLACED_IN_TORCH
                self._look_at_names(vars(thing), names, f"{thing.__name__}.{{}}")
        elif isinstance(thing, type):
            self._look_at_class(thing, self._reads.attributes)
        elif isinstance(thing, (list, dict, tuple, set, frozenset, collections.deque)):
            self._look_at_container(thing, name)
        elif isinstance(thing, (property, staticmethod, classmethod, functools.cached_property)):
            for part in ("fget", "__func__", "func"):
                self._todo.append((getattr(thing, part, None), name))
        elif type(thing).__module__.startswith("torchlayers") and hasattr(thing, "_func"):
            self._todo.append((thing._func, name))
        elif isinstance(thing, Module):
            self._look_at_module(thing)
        elif not isinstance(thing, Optimizer) or "param_groups" in self._reads.attributes:
            self._look_at_object(thing, name)

    def _look_at_function(self, function: types.FunctionType) -> None:
        if function is os.getenv:
            self._todo.append((os.environ, "os.environ"))
        if not is_user_code(function.__code__):
            for cell in function.__closure__ or ():  # of a library's decorator
                self._look_at_cell(cell, "", guarded=False)
            return
        name = function.__name__
        code, defaults, named = function.__code__, function.__defaults__, function.__kwdefaults__
        self._add(
            "function",
            function,
            {
                "code": code,
                "defaults": ABSENT if defaults is None else defaults,
                "named": ABSENT if named is None else named,
            },
            f"what {name} runs, or a default of it,",
        )
        for cell, variable in zip(function.__closure__ or (), code.co_freevars, strict=True):
            self._look_at_cell(cell, variable)
        if self._was_wrapped(function):
            self._todo.append((function.__wrapped__, name))  # type: ignore[attr-defined]
        own = vars(function)
        self._look_at_names(own, self._reads.attributes, f"{{}} of {name}")

    @staticmethod
    def _was_wrapped(function: types.FunctionType) -> bool:
        return "__wrapped__" in vars(function)

    def _look_at_cell(self, cell: types.CellType, variable: str, guarded: bool = True) -> None:
        try:
            held = cell.cell_contents
        except ValueError:  # not set yet
            return
        if guarded:
            self._add("cell", cell, {"": held}, f"variable {variable}")
        else:
            self._todo.append((held, variable))

    def _look_at_names(self, table: dict[str, Any], names: frozenset[str], said: str) -> None:
        self._add("items", table, {n: table[n] for n in [*table] if n in names}, said)

    def _look_at_container(self, thing: Any, name: str) -> None:
        if len(thing) > _MANY_ITEMS:  # a data set
            return
        said = f"{name}[{{!r}}]"
        if isinstance(thing, list):
            self._add("list", thing, dict(enumerate(thing)), said, (name, "items"))
        elif isinstance(thing, dict):
            self._add("whole", thing, dict(thing), said, (name, "items"))
        elif isinstance(thing, (tuple, frozenset)):
            self._todo += [(member, said.format(i)) for i, member in enumerate(thing)]
        else:
            self._todo += [(member, name) for member in thing]
            now = functools.partial(contents, thing, [*thing])
            self._add("asked", now, {"": now()}, f"what is in {name}")

    def _look_at_class(self, kind: type, names: frozenset[str]) -> None:
        before: list[type] = []
        left = {name for name in names if not name.startswith("__")}
        for base in kind.__mro__:
            if not is_defined_in_python(base):
                continue
            own = vars(base)
            here = left & own.keys()
            if is_library(base.__module__):  # only its own methods use the rest
                here &= self._reads.attributes | {"forward"}
            self._add(
                "class", base, {n: own[n] for n in here}, f"{{}} of the class {base.__name__}"
            )
            for earlier in before:
                self._add("class", earlier, dict.fromkeys(here, ABSENT), f"{{}} of {kind.__name__}")
            left -= here
            if base.__module__.partition(".")[0] != "torch":
                before.append(base)
                special = {n: own.get(n, ABSENT) for n in _specials(base)}
                self._add("class", base, special, f"{{}} of the class {base.__name__}")

    def _look_at_object(self, thing: Any, name: str, names: frozenset[str] | None = None) -> None:
        kind = type(thing)
        names = self._reads.attributes if names is None else names
        own = getattr(thing, "__dict__", None)
        if isinstance(thing, Tensor):
            self._look_at_names(own or {}, names, f"{{}} of {name}")
            return
        state = state_of(thing, name)
        if state is not None and self._needs(state):
            self._add("asked", state.get, {"": state.get()}, f"what is in {name}")
        if type(own) is dict:
            said, sizes = f"{{}} of {kind.__name__}", (kind.__name__, "attributes")
            is_module = isinstance(thing, Module)  # its tables are guarded elsewhere
            self._add("object", thing, {"kind": kind, "dict": own}, f"the kind of {name}")
            hidden = {n for n in names if n not in own and _comes_after(kind, n)}
            hidden |= self._reads.asked - own.keys()
            # A UserDict, or os.environ: its methods read what it holds.
            is_wrapper = is_library(kind.__module__) and isinstance(thing, (Mapping, Sequence, Set))
            any_attribute = self._reads.any_attribute and not is_library(kind.__module__)
            if (any_attribute or is_wrapper) and not is_module:
                self._add("whole", own, dict(own), said, sizes)
            else:
                held = {n: own[n] for n in [*own] if n in names}
                self._add("items", own, {**held, **dict.fromkeys(hidden, ABSENT)}, said, sizes)
        for slot in slots_of(kind) & names:
            now = functools.partial(getattr, thing, slot, None)
            self._add("asked", now, {"": now()}, f"{slot} of {kind.__name__}")
        if id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            self._look_at_class(kind, names)

    def _look_at_module(self, module: Module) -> None:
        kind = type(module)
        own = vars(module)
        if "training" not in own:  # a TorchScript module: see module_calls.py
            return
        of_class, any_of_class = _names_of_library_class(kind)  # type: ignore[arg-type]
        names = self._reads.attributes | of_class | {"training", "forward", *TABLES}
        whole = any_of_class or bool(_THROUGH & self._reads.attributes)
        if whole or self._reads.any_attribute:
            whole = True
            names |= {name for name in own if not name.startswith("_")}
        names -= {*_HOOKS, _REMADE}
        self._look_at_object(module, kind.__name__, names)
        for name in TABLES:
            table = own[name]
            self._seen.setdefault(id(table), table)
            if whole:
                what = "children" if name == "_modules" else name.strip("_")
                sizes = kind.__name__, what
                self._add("whole", table, dict(table), f"{{}} of {kind.__name__}", sizes)
            else:
                self._look_at_names(table, names, f"{{}} of {kind.__name__}")
        # The other dicts about hooks change together with these.
        for name in CALLED_HOOKS:
            table = own.get(name)
            if isinstance(table, dict):
                self._seen.setdefault(id(table), table)
                sizes = kind.__name__, "hooks"
                self._add("whole", table, dict(table), f"hook {{}} of {kind.__name__}", sizes)


_BINARY = ["add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
# Methods that may be added later: a class with __len__ may get a __bool__.
_OPERATORS = {
    *(
        name
        for name, value in vars(operator).items()
        if name.startswith("__") and isinstance(value, types.BuiltinFunctionType)
    ),
    *(f"__r{name}__" for name in _BINARY),
    *("__bool__", "__len__", "__iter__", "__float__", "__getattr__", "__getattribute__"),
}


def _imported(name: str) -> types.ModuleType | None:
    return sys.modules.get(name)


def _comes_after(kind: type, name: str) -> bool:
    """Whether an instance attribute of that name would shadow what its class has or computes."""
    for base in kind.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            return not hasattr(type(found), "__set__")
    return not is_library(getattr(getattr(kind, "__getattr__", None), "__module__", "torch"))


def _specials(kind: type) -> set[str]:
    """Returns the methods of a user's class that run unnamed: ``__call__``, ``__mul__``."""
    if is_library(kind.__module__):
        return set()
    own = {
        name
        for name, value in vars(kind).items()
        if name.startswith("__") and isinstance(value, types.FunctionType)
    }
    return _OPERATORS | own


@functools.lru_cache(1024)
def _names_of_library_class(kind: type) -> tuple[frozenset[str], bool]:
    """Returns the attributes that a torch module's methods read, and whether they may read any."""
    found: NameAccesses = merge_accesses(
        code
        for base in kind.__mro__
        if base.__module__.startswith("torch.") and base is not Module
        for value in vars(base).values()
        for code in code_of_attribute(value)
    )
    through = issubclass(kind, _CONTAINERS) or bool(_THROUGH & found.attributes)
    return found.attributes, through
