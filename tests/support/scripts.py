"""Imports a script that lies outside every package: of .ci or docs/site."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def loaded(path: str) -> ModuleType:
    """The script as a module.

    Args:
        path: relative to the repository's root.
    """
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
