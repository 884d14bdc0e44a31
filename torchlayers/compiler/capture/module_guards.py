"""The modules that a captured function calls or is passed, and their state at the capture.

Dropout and batch norm depend on whether they are training, which no tensor shows; nor does a tensor
show that a parameter or a child was replaced, or a hook added. If the state of a module differs,
the call has another signature than that of the captured graph.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as modules

from torchlayers import _C
from torchlayers.core.shared_change import SharedChange

_COUNTED = ("_modules", "_forward_hooks", "_forward_pre_hooks")


class ModuleState(NamedTuple):
    """The value that a dict of a module had under a key; without a key, the length of the dict."""

    table: dict[str, Any]
    key: str | None
    value: Any

    def still_holds(self) -> bool:
        if self.key is None:
            return bool(len(self.table) == self.value)
        return self.table.get(self.key) is self.value


class ModuleGuard(NamedTuple):
    """A module, and its state at the capture."""

    module: nn.Module
    held: list[ModuleState]

    def difference(self) -> str:
        """Describes the first difference from the state at the capture; empty if there is none."""
        name = type(self.module).__name__
        for table, key, value in (held for held in self.held if not held.still_holds()):
            if key == "training":
                now, then = ("is not", "was") if value else ("is", "was not")
                return f"{name} {now} in training, and {then}"
            if key is not None:
                return f"{key} of {name} was replaced"
            return f"{name} has {len(table)} {_names(self.module, table)}, had {value}"
        return ""


def _names(module: nn.Module, table: dict[str, Any]) -> str:
    name = next(name for name in _COUNTED if vars(module)[name] is table)
    return "children" if name == "_modules" else "hooks"


def find_modules(func: Callable[..., Any], leaves: Sequence[Any]) -> list[nn.Module]:
    """Returns the modules among the arguments, and the one whose method the function is."""
    own = getattr(func, "__self__", None)
    return [each for each in (own, *leaves) if isinstance(each, nn.Module)]


class _Thread(threading.local):
    """The modules that captures on this thread have seen, innermost last."""

    def __init__(self) -> None:
        self.seen: list[dict[int, ModuleGuard]] = []


_thread = _Thread()


class ModuleCallHook:
    """A global module hook that is registered during captures, and that guards ignore."""

    def __call__(self, module: nn.Module, args: Any) -> None:
        for seen in _thread.seen:
            if id(module) not in seen:
                seen[id(module)] = ModuleGuard(module, [*_states_of(module)])


_C.guards_ignore(ModuleCallHook)
# Needed around record_module_calls.
calls_hooked = SharedChange(
    lambda: modules.register_module_forward_pre_hook(ModuleCallHook()).remove
)


@contextlib.contextmanager
def record_module_calls(known: Sequence[nn.Module]) -> Iterator[list[ModuleGuard]]:
    """Yields a list that gets, on exit, these modules and those that this thread called inside.

    State that the function itself changes (training, tensors that functional_call swaps in) is left
    out: its value before the call does not matter.
    """
    seen = {id(module): ModuleGuard(module, [*_states_of(module)]) for module in known}
    found: list[ModuleGuard] = []
    _thread.seen.append(seen)
    try:
        yield found
    finally:
        _thread.seen.pop()
        for module, held in seen.values():
            found.append(ModuleGuard(module, [each for each in held if each.still_holds()]))


def _states_of(module: nn.Module) -> Iterator[ModuleState]:
    own = vars(module)
    if "training" not in own:
        attributes = _Attributes(module)
        yield ModuleState(attributes, "training", attributes.get("training"))
        return
    yield ModuleState(own, "training", module.training)
    for name in _COUNTED:
        yield ModuleState(own[name], None, len(own[name]))
    for table in (own["_parameters"], own["_modules"]):
        for key, value in table.items():
            yield ModuleState(table, key, value)


class _Attributes(dict[str, Any]):
    """Attributes of a TorchScript module, not in its dict. A frozen one lacks ``training``."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self._module, key, default)


def is_scripted(called: ModuleGuard) -> bool:
    """Whether a module is a TorchScript module, whose attributes are not in its dict."""
    return "training" not in vars(called.module)


def still_hold(called: Sequence[ModuleGuard]) -> bool:
    """Whether all modules are in the state that they had at the capture."""
    return all(held.still_holds() for each in called for held in each.held)
