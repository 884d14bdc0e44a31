"""The modules that a recorded function calls or is given, and what they held.

Dropout and batch norm go by whether they are training, and no tensor shows it; nor does one show
that a parameter or a child was replaced, or a hook added. Where a module holds something else, a
recording made before is another signature's.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as modules

from torchlayers import _C

_COUNTED = ("_modules", "_forward_hooks", "_forward_pre_hooks")


class Held(NamedTuple):
    """What a dict of a module's had under a key; without a key, how much it had."""

    table: dict[str, Any]
    key: str | None
    value: Any

    def is_as_then(self) -> bool:
        if self.key is None:
            return bool(len(self.table) == self.value)
        return self.table.get(self.key) is self.value


class Called(NamedTuple):
    """A module, and what it held."""

    module: nn.Module
    held: list[Held]

    def difference(self) -> str:
        """What it holds now that it did not, in words, or nothing."""
        name = type(self.module).__name__
        for table, key, value in (held for held in self.held if not held.is_as_then()):
            if key == "training":
                now, then = ("is not", "was") if value else ("is", "was not")
                return f"{name} {now} in training, and {then}"
            if key is not None:
                return f"{key} of {name} is another"
            return f"{name} has {len(table)} {_names(self.module, table)}, had {value}"
        return ""


def _names(module: nn.Module, table: dict[str, Any]) -> str:
    name = next(name for name in _COUNTED if vars(module)[name] is table)
    return "children" if name == "_modules" else "hooks"


def modules_given(func: Callable[..., Any], leaves: Sequence[Any]) -> list[nn.Module]:
    """The modules that a function has before it calls any: it may be a method of one."""
    own = getattr(func, "__self__", None)
    return [each for each in (own, *leaves) if isinstance(each, nn.Module)]


class Noting:
    """A hook of all modules that is there while a recording is made, and no guard sees."""

    def __init__(self, note: Callable[[nn.Module], None]) -> None:
        self._note = note

    def __call__(self, module: nn.Module, args: Any) -> None:
        self._note(module)


_C.guards_ignore(Noting)


@contextlib.contextmanager
def noted(known: Sequence[nn.Module]) -> Iterator[list[Called]]:
    """These modules and those that this thread calls inside, when all is over.

    What the function itself changes (training, tensors that functional_call puts in) is left out:
    what it was before the call does not count.
    """
    thread = threading.get_ident()
    seen = {id(module): Called(module, [*_held_by(module)]) for module in known}

    def note(module: nn.Module) -> None:
        if threading.get_ident() == thread and id(module) not in seen:
            seen[id(module)] = Called(module, [*_held_by(module)])

    found: list[Called] = []
    handle = modules.register_module_forward_pre_hook(Noting(note))
    try:
        yield found
    finally:
        handle.remove()
        for module, held in seen.values():
            found.append(Called(module, [each for each in held if each.is_as_then()]))


def _held_by(module: nn.Module) -> Iterator[Held]:
    own = vars(module)
    if "training" not in own:
        attributes = _Attributes(module)
        yield Held(attributes, "training", attributes.get("training"))
        return
    yield Held(own, "training", module.training)
    for name in _COUNTED:
        yield Held(own[name], None, len(own[name]))
    for table in (own["_parameters"], own["_modules"]):
        for key, value in table.items():
            yield Held(table, key, value)


class _Attributes(dict[str, Any]):
    """Those of a TorchScript module, which keeps them elsewhere; a frozen one has no training."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self._module, key, default)


def is_scripted(called: Called) -> bool:
    """Whether a module keeps its attributes elsewhere than Python does."""
    return "training" not in vars(called.module)


def are_as_then(called: Sequence[Called]) -> bool:
    """Whether all of them hold what they held."""
    return all(held.is_as_then() for each in called for held in each.held)
