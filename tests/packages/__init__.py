"""Third-party packages that use or patch torch.func, with our transforms in its place.

`make test-full` installs them, and runs each file in a separate process: a package's patches of
torch.func persist, and some packages are incompatible with each other.
"""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import torchlayers
from tests.support.calls import assert_same
from tests.support.traced_steps import traced_steps
from torchlayers.core import torch_func

THEIRS = {id(getattr(torch_func, name)): name for name in torch_func.__all__}


def package(name: str) -> Any:
    """Imports the package, or one of its modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@contextlib.contextmanager
def ours_in(*modules: ModuleType) -> Iterator[None]:
    """Replaces torch.func's transforms with ours, also in modules that imported them by name."""
    names = tuple(module.__name__.partition(".")[0] for module in modules)
    users = [
        module for name, module in list(sys.modules.items()) if name.partition(".")[0] in names
    ]
    with torchlayers.install(), pytest.MonkeyPatch.context() as patch:
        for module in users:
            for name, value in list(vars(module).items()):
                if id(value) in THEIRS:
                    patch.setattr(module, name, getattr(torchlayers, THEIRS[id(value)]))
        yield


def agree_in(*modules: ModuleType) -> Callable[[Callable[[], Any]], Any]:
    """Returns agree(call), which checks that the call gives the same with our transforms."""

    def agree(call: Callable[[], Any]) -> Any:
        torch.manual_seed(0)
        theirs = call()
        with ours_in(*modules), traced_steps() as events:
            torch.manual_seed(0)
            ours = call()
        assert events, "none of our layers was entered"
        assert torchlayers.current_stack() == ()
        assert_same(ours, theirs, rounded=True)
        return ours

    return agree
