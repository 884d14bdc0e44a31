"""The modules that a captured function calls or is passed.

Dropout and batch norm depend on whether they are training, which no tensor shows; nor does a tensor
show that a parameter or a child was replaced, or a hook added. The code of a called module is
guarded like other state that is read (guards.py). The rest is here: modules of TorchScript, whose
attributes are not in a dict, and with ``guards=False`` the contents of all modules.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

from torchlayers import _C
from torchlayers.compiler.capture.state.guarded_place import GuardedPlace
from torchlayers.core.shared_change import SharedChange

_TABLES = ("_parameters", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def find_modules(func: Callable[..., Any], leaves: Sequence[Any]) -> list[nn.Module]:
    """Returns the modules among the arguments, and the one whose method the function is."""
    bound_to = getattr(func, "__self__", None)
    return [value for value in (bound_to, *leaves) if isinstance(value, nn.Module)]


class CalledModules:
    """The modules that a capture has seen, with their contents when it saw them first."""

    def __init__(self, known: Sequence[nn.Module]) -> None:
        self._seen: dict[int, tuple[nn.Module, list[GuardedPlace]]] = {}
        for module in known:
            self.add(module)

    def add(self, module: nn.Module) -> None:
        if id(module) not in self._seen:
            self._seen[id(module)] = module, [*_places_of(module)]

    def modules(self) -> list[nn.Module]:
        return [module for module, _ in self._seen.values()]

    def places(self, *, of_scripted_only: bool) -> list[GuardedPlace]:
        """Returns the guards of their contents.

        What the function itself changes (training, tensors that functional_call swaps in) is left
        out: its value before the call does not matter.
        """
        return [
            place
            for module, places in self._seen.values()
            if _is_scripted(module) or not of_scripted_only
            for place in places
            if _C.Guards(place.for_cpp()).hold()
        ]


def _places_of(module: nn.Module) -> Iterator[GuardedPlace]:
    name = type(module).__name__
    if _is_scripted(module):
        now = functools.partial(getattr, module, "training", None)  # a frozen one lacks it
        yield GuardedPlace("asked", now, (), (now(),), f"training of {name}", ("", ""))
        return
    attributes = vars(module)
    yield GuardedPlace(
        "items", attributes, ("training",), (attributes["training"],), f"{{}} of {name}", (name, "")
    )
    for table in (*_TABLES, *_HOOKS):
        entries = attributes[table]
        what = {"_parameters": "parameters", "_modules": "children"}.get(table, "hooks")
        sizes = name, what
        yield GuardedPlace(
            "whole", entries, (*entries,), (*entries.values(),), f"{{}} of {name}", sizes
        )


def _is_scripted(module: nn.Module) -> bool:
    return "training" not in vars(module)


class _Thread(threading.local):
    """The modules that captures on this thread have seen, innermost last."""

    def __init__(self) -> None:
        self.seen: list[CalledModules] = []


_thread = _Thread()


class ModuleCallHook:
    """A global module hook that is registered during captures, and that guards ignore."""

    def __call__(self, module: nn.Module, args: Any) -> None:
        for seen in _thread.seen:
            seen.add(module)


_C.guards_ignore(ModuleCallHook)
# Needed around record_module_calls.
calls_hooked = SharedChange(
    lambda: modules.register_module_forward_pre_hook(ModuleCallHook()).remove
)


@contextlib.contextmanager
def record_module_calls(known: Sequence[nn.Module]) -> Iterator[CalledModules]:
    """Yields these modules and those that this thread calls inside."""
    seen = CalledModules(known)
    _thread.seen.append(seen)
    try:
        yield seen
    finally:
        _thread.seen.pop()
