"""Code that waits for the import of a module of torch."""

import importlib
import sys

import pytest

from torchlayers.core.import_hook import when_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that has not been imported."""
    (tmp_path / "waited_for.py").write_text("number = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield "waited_for"
    sys.modules.pop("waited_for", None)


def test_runs_at_the_end_of_the_import_and_leaves_no_finder(module):
    finders = [*sys.meta_path]
    seen = []
    when_imported(module, lambda: seen.append(sys.modules[module].number))
    when_imported(module, lambda: seen.append(2))
    assert not seen
    importlib.import_module(module)
    assert seen == [1, 2]
    assert [each for each in sys.meta_path if each in finders] == sys.meta_path
    importlib.reload(sys.modules[module])
    assert seen == [1, 2]


def test_runs_at_once_for_a_module_that_is_there(module):
    importlib.import_module(module)
    finders = [*sys.meta_path]
    seen = []
    when_imported(module, lambda: seen.append(1))
    assert seen == [1]
    assert sys.meta_path == finders


def test_a_module_that_does_not_exist_is_not_found_and_waited_for(module):
    seen = []
    when_imported("waited_for_in_vain", lambda: seen.append(1))
    with pytest.raises(ModuleNotFoundError, match="waited_for_in_vain"):
        importlib.import_module("waited_for_in_vain")
    assert not seen
