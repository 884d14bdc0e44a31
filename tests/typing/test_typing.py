"""The types of a user's program: what mypy and pyright reveal, what they report, what is true."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typing_extensions

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAM, MISTAKES = HERE / "program.py", HERE / "mistakes.py"
CHECKERS = {
    # The cache of `make lint`, which has read torch already.
    "mypy": [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={ROOT / '.mypy_cache'}"],
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}
ERROR = re.compile(r"(?P<file>\w+)\.py:(?P<line>\d+)(:\d+)?(:| -) error: (?P<text>.*)")


def errors(checker):
    """The errors that a checker reports, by file and line."""
    command = [*CHECKERS[checker], PROGRAM, MISTAKES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr  # it ran, and found the mistakes
    found = {PROGRAM: {}, MISTAKES: {}}
    for match in ERROR.finditer(done.stdout):
        found[HERE / f"{match['file']}.py"].setdefault(int(match["line"]), match["text"])
    return found


@pytest.mark.full
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_accepts_the_program_and_reports_each_mistake(checker):
    found = errors(checker)
    assert found[PROGRAM] == {}
    lines = enumerate(MISTAKES.read_text("utf-8").splitlines(), 1)
    marked = {number for number, line in lines if line.endswith("# mistake")}
    assert len(marked) > 50
    assert found[MISTAKES].keys() == marked


def fits(value, expected):
    """Whether a value has a type that may be a tuple, list or dict of others."""
    if expected is Any:
        return True
    origin, inner = get_origin(expected), get_args(expected)
    if origin is None:
        return isinstance(value, expected)
    if not isinstance(value, origin):
        return False
    if origin is tuple:
        return len(value) == len(inner) and all(map(fits, value, inner))
    values = value.values() if origin is dict else value
    return all(fits(each, inner[-1]) for each in values)


@pytest.mark.sweep
def test_values_have_the_stated_types(monkeypatch):
    stated = []

    def assert_type(value, expected):
        assert fits(value, expected), (len(stated), type(value), expected)
        stated.append(expected)
        return value

    monkeypatch.setattr(typing_extensions, "assert_type", assert_type)
    runpy.run_path(str(PROGRAM))
    assert len(stated) > 50


@pytest.mark.full  # mypy and pyright: a minute
def test_a_value_of_another_type_does_not_fit():
    assert fits(({"a": 1}, [2.0]), tuple[dict[str, int], list[float]])
    assert not fits(({"a": 1}, [2]), tuple[dict[str, int], list[float]])
    assert not fits((1, 2, 3), tuple[int, int])
    assert not fits([1], tuple[int])
