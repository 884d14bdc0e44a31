"""make shows its targets, and how far a build is: as a bar on a terminal, as lines in a log. And an
editable install compiles where the next one finds what has not changed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import loaded

build = loaded(".ci/build.py")

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PRINTED = ["running build_ext\n", *(f"  [{i}/8] g++ -c unit_{i}.cpp\n" for i in range(1, 9))]


def make(*arguments):
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_make_alone_lists_the_targets_and_makes_nothing():
    alone = make()
    assert alone == make("help")
    targets = re.search(r"TARGETS := ((?:.*\\\n)*.*)", MAKEFILE)[1].replace("\\", "").split()
    listed = re.findall(r"^  (\S+) +\S", alone, re.MULTILINE)
    assert listed[:2] == ["demo", "test"]
    assert {*listed} == {*targets, "help", "test-versions", "clean"}
    assert len(listed) == len({*listed})


def test_the_list_has_the_time_of_each_long_target():
    lines = {line.split()[0]: line for line in make().splitlines() if line.startswith("  ")}
    for name in ("demo", "test", "test-full", "lint", "wheels", "notebooks", "docs", "bench"):
        assert re.search(r"(second|minute|hour)s?\b", lines[name])


def test_units_are_counted_and_all_lines_kept():
    kept = []
    assert [*build.steps(PRINTED, kept)] == [(i, 8) for i in range(1, 9)]
    assert kept == PRINTED


def test_the_compilers_errors_are_shown():
    after = ["Traceback\n"] * 500
    failed = ["FAILED: unit_1.o\n", "unit_1.cpp:3: error: no member\n"]
    assert build.failure([*PRINTED, *failed, *after])[:2] == failed
    assert build.failure([*PRINTED, *after, "no package\n"])[-1] == "no package\n"


def test_a_log_gets_a_line_for_each_quarter():
    lines = [*build.log(build.steps(PRINTED, []))]
    assert lines == [f"compiled {done} of 8 units\n" for done in (2, 4, 6, 8)]


def test_a_terminal_gets_a_bar_on_one_line():
    text = "".join(build.bar(build.steps(PRINTED, [])))
    assert text.count("\n") == 1
    assert text.endswith(f"\rcompiling [{'#' * build.WIDTH}] 8/8\n")


@pytest.mark.sweep
def test_an_editable_install_compiles_in_the_folder_of_all_builds(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc/precompiled.h", "csrc/core/aten_functions.h", "torchlayers/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\necho "$@" >> commands.txt\nexit 1\n')
    compiler.chmod(0o755)
    command = [sys.executable, "setup.py", "editable_wheel", "--dist-dir", str(tmp_path / "dist")]
    environment = os.environ | {"CXX": str(compiler), "TORCH_DONT_CHECK_COMPILER_ABI": "1"}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    commands = (tmp_path / "commands.txt").read_text()
    assert f"-o {tmp_path}/build/temp/precompiled.h.gch" in commands
