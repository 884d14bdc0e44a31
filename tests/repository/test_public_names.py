"""Public names are told from private ones: in the package, in dir(), in signatures."""

import importlib
import inspect
import types

import pytest

import torchlayers as tl

MODULES = [tl, *(value for name in tl.__all__ if inspect.ismodule(value := getattr(tl, name)))]


def test_modules_for_users_are_public():
    names = {module.__name__.removeprefix("torchlayers.") for module in MODULES[1:]}
    assert {"errors", "memory", "extend", "checkpoint_policies", "testing", "compiled"} <= names


def test_dir_shows_public_names_alone():
    assert dir(tl) == sorted([*tl.__all__, "__version__"])


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_exist_once_and_in_order(module):
    assert all(hasattr(module, name) for name in module.__all__)
    assert len(module.__all__) == len({*module.__all__})
    assert not any(name.startswith("_") for name in module.__all__)


def test_public_names_are_imported_by_star():
    namespace = {}
    exec("from torchlayers import *", namespace)
    assert namespace.keys() - {"__builtins__"} == {*tl.__all__}


def test_testing_is_loaded_when_it_is_used():
    assert tl.testing is importlib.import_module("torchlayers.testing")


def signatures():
    """The signatures of public functions and classes, and of public methods, by name."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            methods = vars(value).items() if inspect.isclass(value) else ()
            for label, function in [("", value), *methods]:
                if label.startswith("_") or not callable(function):
                    continue
                try:
                    yield f"{module.__name__}.{name} {label}", inspect.signature(function)
                except ValueError:  # exceptions, and classes with a metaclass in C++
                    continue


SIGNATURES = dict(signatures())


def test_signatures_show_only_arguments_that_may_be_given():
    assert len(SIGNATURES) > 150
    hidden = [
        f"{name}: {parameter}"
        for name, signature in SIGNATURES.items()
        for parameter in signature.parameters.values()
        if parameter.name.startswith("_") or parameter.name in ("api", "others")
    ]
    assert hidden == []


def test_signatures_show_no_address():
    assert not [name for name, signature in SIGNATURES.items() if " at 0x" in str(signature)]


def test_modules_list_no_names_of_others():
    """A module's public functions are the package's, and not what it happens to import."""
    foreign = [
        f"{module.__name__}.{name}"
        for module in MODULES
        for name in module.__all__
        for value in [getattr(module, name)]
        if isinstance(value, types.FunctionType)
        and not value.__module__.startswith(("torchlayers", "torch.", "functorch"))
    ]
    assert foreign == []
