"""Each mutant can be made and tried; a copy is as before after one; results make a table."""

import os
import shlex
from pathlib import Path

import pytest

from tests.mutants import results
from tests.mutants.mutant import Mutant
from tests.mutants.results import Result
from tests.mutants.scratch import ROOT, Scratch
from tests.mutants.table import MUTANTS
from tests.repository import test_rooms

NAMES = [mutant.name for mutant in MUTANTS]


def test_there_are_a_hundred_mutants_with_different_names():
    assert len(MUTANTS) == 100
    assert len({*NAMES}) == 100


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_a_mutant_changes_a_text_that_occurs_once(mutant):
    source = (ROOT / mutant.file).read_text("utf-8")
    changed = mutant.applied_to(source)
    assert changed != source
    if not mutant.is_compiled:
        compile(changed, mutant.file, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_the_tests_of_a_mutant_are_there(mutant):
    paths = [word for word in shlex.split(mutant.tests) if word.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_room_has_a_mutant():
    rooms = {f"csrc/{room}" for room in test_rooms.ROOMS}
    rooms |= {f"torchlayers/{room}" for room in test_rooms.FLOOR_OF}
    assert rooms <= {mutant.room for mutant in MUTANTS}


def test_a_text_that_has_moved_is_reported():
    mutant = Mutant("name", "file.py", "a", "b", "", "")
    with pytest.raises(ValueError, match=r"'name' changes a text that occurs 2 times in file\.py"):
        mutant.applied_to("a a")


def test_a_file_is_as_before_after_its_mutant(tmp_path):
    scratch = Scratch(tmp_path)
    path = scratch.tree / "file.py"
    path.parent.mkdir()
    path.write_text("x = 1\n")
    os.utime(path, (1, 1))
    with scratch.mutated(Mutant("name", "file.py", "1", "2", "", "")):
        assert path.read_text() == "x = 2\n"
        assert path.stat().st_mtime > 1
    assert path.read_text() == "x = 1\n"
    assert path.stat().st_mtime == 1


def test_results_are_read_back_and_counted_by_room(tmp_path):
    path = tmp_path / "results.jsonl"
    assert results.read(path) == {}
    results.append(path, Result("one", "csrc/core", "", 1.0))
    results.append(path, Result("one", "csrc/core", "tests/core/test_stack.py::test_a[b]", 2.0))
    results.append(path, Result("two", "csrc/core", "", 3.0))
    tried = results.read(path)
    assert [*tried] == ["one", "two"]
    assert results.by_room(tried.values()).splitlines()[2:] == [
        "| csrc/core | 2 | 1 | core |",
        "| all | 2 | 1 | |",
    ]
    mutants = [Mutant(name, "file.py", "", "", f"fault {name}", "") for name in ("one", "two")]
    assert results.not_seen(tried.values(), mutants) == "- two (file.py): fault two"


def test_contributing_shows_the_rooms_of_all_mutants():
    text = Path(ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for room in {mutant.room for mutant in MUTANTS}:
        count = sum(mutant.room == room for mutant in MUTANTS)
        assert f"| {room} | {count} |" in text
