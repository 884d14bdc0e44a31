"""Code that waits for the import of a module of torch."""

import importlib
import sys

import pytest
import torch

import torchlayers
from torchlayers.core.import_hook import when_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that has not been imported."""
    (tmp_path / "waited_for.py").write_text("number = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "waited_for"
    sys.modules.pop("waited_for", None)


def load(name):
    """A function whose transform imports a module."""

    def func(x):
        importlib.import_module(name)
        return x.sum()

    return func


def test_runs_at_the_end_of_an_import_in_a_layer(module):
    finders = [*sys.meta_path]
    seen = []
    when_imported(module, lambda: seen.append(sys.modules[module].number))
    when_imported(module, lambda: seen.append(2))
    assert not seen
    assert sys.meta_path == finders
    torchlayers.grad(load(module))(torch.ones(3))
    assert seen == [1, 2]
    assert sys.meta_path == finders
    importlib.reload(sys.modules[module])
    torchlayers.grad(load(module))(torch.ones(3))
    assert seen == [1, 2]


def test_runs_in_the_first_layer_after_an_import(module):
    seen = []
    when_imported(module, lambda: seen.append(1))
    importlib.import_module(module)
    assert not seen
    torchlayers.grad(lambda x: x.sum() * len(seen))(torch.ones(3))
    assert seen == [1]


def test_runs_at_once_for_a_module_that_is_there(module):
    importlib.import_module(module)
    seen = []
    when_imported(module, lambda: seen.append(1))
    assert seen == [1]


def test_a_module_that_does_not_exist_is_not_found_and_waited_for(module):
    seen = []
    when_imported("waited_for_in_vain", lambda: seen.append(1))
    with pytest.raises(ModuleNotFoundError, match="waited_for_in_vain"):
        torchlayers.grad(load("waited_for_in_vain"))(torch.ones(3))
    assert not seen
