"""Installs the package in place, with a bar on a terminal and a line now and then in a log.

    python .ci/build.py

It compiles the extension, and leaves dependencies to others. What compilers print is shown if they
fail.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ")  # ninja's count of units
WIDTH = 40
QUARTERS = 4
LINES = 100  # of what failed


def main() -> None:
    pip = [sys.executable, "-m", "pip", "install", "--verbose"]  # prints what ninja does, at once
    command = [*pip, "--no-build-isolation", "--no-deps", "--editable", "."]
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as build:
        assert build.stdout is not None
        printed: list[str] = []
        shown = bar if sys.stdout.isatty() else log
        for text in shown(steps(build.stdout, printed)):
            print(text, end="", flush=True)
    seconds = time.monotonic() - started
    if build.returncode:
        print("".join(failure(printed)))
        sys.exit("The extension could not be built. The compiler's errors are above.")
    print(f"The extension is built ({seconds:.0f} s).")


def steps(lines: Iterable[str], printed: list[str]) -> Iterator[tuple[int, int]]:
    """How many units are compiled, and of how many, after each; keeps all lines."""
    for line in lines:
        printed.append(line)
        if match := STEP.match(line):
            yield int(match[1]), int(match[2])


def failure(printed: list[str]) -> list[str]:
    """What the compiler printed about the first unit that failed; else the end of all lines."""
    failed = (i for i, line in enumerate(printed) if line.lstrip().startswith("FAILED: "))
    start = next(failed, max(0, len(printed) - LINES))
    return printed[start : start + LINES]


def bar(counts: Iterable[tuple[int, int]]) -> Iterator[str]:
    """A bar that is drawn over itself."""
    yield "\rcompiling …"
    for done, total in counts:
        filled = WIDTH * done // total
        yield f"\rcompiling [{'#' * filled}{' ' * (WIDTH - filled)}] {done}/{total}"
    yield "\n"


def log(counts: Iterable[tuple[int, int]]) -> Iterator[str]:
    """A line for each quarter."""
    reached = 0
    for done, total in counts:
        quarter = QUARTERS * done // total
        if quarter > reached:
            reached = quarter
            yield f"compiled {done} of {total} units\n"


if __name__ == "__main__":
    main()
