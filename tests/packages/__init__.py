"""Packages that use torch.func, or that torch.func's transforms meet, with ours in its place.

`make test-full` installs them and runs these tests, in processes of their own: what some of them
replace in torch.func stays replaced. A package that can't be imported is skipped, and says so.
"""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import functorch
import pytest
import torch
import torch.func

import torchlayers
from tests.helpers import assert_same

NAMES = (
    *("grad", "grad_and_value", "vjp", "jvp", "vmap", "jacrev", "jacfwd", "hessian"),
    *("functionalize", "linearize", "functional_call", "stack_module_state"),
)
THEIRS = {id(getattr(torch.func, name)): name for name in NAMES}


def package(name: str) -> Any:
    """The package, or one of its modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{name}: {error}; `make test-full` installs it", allow_module_level=True)


@contextlib.contextmanager
def ours_in(*modules: ModuleType) -> Iterator[None]:
    """Inside, each of torch.func's transforms is ours: in torch, and in the packages' modules."""
    names = tuple(module.__name__.partition(".")[0] for module in modules)
    users = [
        module for name, module in list(sys.modules.items()) if name.partition(".")[0] in names
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module in (torch, torch.func, functorch, *users):
            for name, value in list(vars(module).items()):
                if id(value) in THEIRS:
                    patch.setattr(module, name, getattr(torchlayers, THEIRS[id(value)]))
        yield


def agree_in(*modules: ModuleType) -> Callable[[Callable[[], Any]], Any]:
    """agree(call): a call of these packages' gives the same with ours in torch.func's place."""

    def agree(call: Callable[[], Any]) -> Any:
        torch.manual_seed(0)
        theirs = call()
        with ours_in(*modules), torchlayers.trace() as events:
            torch.manual_seed(0)
            ours = call()
        assert events, "none of our layers was entered"
        assert torchlayers.current_stack() == ()
        assert_same(ours, theirs, rounded=True)
        return ours

    return agree
