"""Runs code once a module of torch has been imported, without importing it."""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Action = Callable[[], object]


def when_imported(name: str, action: Action) -> None:
    """Calls ``action`` now if the module has been imported, else at the end of its import."""
    if name in sys.modules:
        action()
    else:
        finder = next((each for each in sys.meta_path if isinstance(each, _Finder)), None)
        if finder is None:
            finder = _Finder()
            sys.meta_path.insert(0, finder)
        finder.actions.setdefault(name, []).append(action)


class _Finder(MetaPathFinder):
    """Finds the modules that are waited for, as Python would, and is gone when all are found."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.actions:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in self.actions.pop(name, ()):
                action()
            if not self.actions and self in sys.meta_path:
                sys.meta_path.remove(self)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
