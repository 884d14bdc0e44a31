"""Runs the tests of a mutant, and says which of them saw it."""

import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants import smoke
from tests.mutants.scratch import FOLDER

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?|\S+)(?: - .*)?$", re.MULTILINE)
# No test was run, or the mutant breaks every program: the mutant, or the choice of its tests, is
# wrong.
_WRONG = {
    int(pytest.ExitCode.INTERRUPTED): "its tests can't be imported",
    int(pytest.ExitCode.USAGE_ERROR): "pytest does not accept its tests",
    int(pytest.ExitCode.NO_TESTS_COLLECTED): "it has no tests",
    smoke.EXIT_STATUS: "it breaks every program",
}


class MutantError(Exception):
    """The mutant can't be tried as it is."""


@dataclass(frozen=True)
class Outcome:
    """What became of some tests.

    Attributes:
        failed: the first test that failed; what happened to the process if it ended otherwise; ""
            if all passed.
        seconds: how long they took.
        output: what pytest printed.
    """

    failed: str
    seconds: float
    output: str


def run_tests(tree: Path, tests: str, is_full: bool, timeout: float) -> Outcome:
    """Runs tests in a copy of the project until one of them fails.

    Args:
        tree: the copy.
        tests: arguments of pytest.
        is_full: with the long sweeps.
        timeout: after so many seconds of processor time, or ten times as many in all, the process
            is ended, and the mutant is seen.
    Raises:
        MutantError: no test was run.
    """
    command = [sys.executable, "-m", "pytest", *shlex.split(tests), "-x", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "tests.mutants.smoke"]
    command += ["--full"] if is_full else []
    caches = FOLDER / "caches"  # what a mutant compiles must not be taken for the product's
    shutil.rmtree(caches, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(tree), "TORCHINDUCTOR_CACHE_DIR": str(caches)}
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(timeout),) * 2),
    ) as process:
        try:
            output, _ = process.communicate(timeout=10 * timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Outcome(f"no end after {10 * timeout:.0f} s", 10 * timeout, output)
    seconds = time.perf_counter() - start
    if problem := _WRONG.get(process.returncode):
        raise MutantError(f"{problem} ({tests}):\n{output}")
    if process.returncode == 0:
        return Outcome("", seconds, output)
    found = _FAILED.search(output)
    failed = found[1] if found else f"the process ended with {process.returncode}"
    return Outcome(failed, seconds, output)
