"""Runs code once a module of torch has been imported, without importing it.

Only what runs while a layer is active may need it (NOTE [Patches] in csrc/core/patches.h), so that
is when imports are watched. When the first layer is entered, the imports before it are looked at.
"""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from torchlayers import _C

Action = Callable[[], object]

_pending: dict[str, list[Action]] = {}


def when_imported(name: str, action: Action) -> None:
    """Calls ``action`` once the module has been imported, at the latest in the next layer."""
    _pending.setdefault(name, []).append(action)
    _run_ready()


def _run_ready() -> None:
    for name in [*_pending]:
        if name in sys.modules and not _is_being_imported(sys.modules[name]):
            _run(name)


def _is_being_imported(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _run(name: str) -> None:
    for action in _pending.pop(name, ()):
        action()


class _Finder(MetaPathFinder):
    """Finds the modules that are waited for, as Python would."""

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _pending:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _run(name)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_C.watch_imports(_pending, _run_ready, _Finder())
