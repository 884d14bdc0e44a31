"""The draw of the quick run: of each test marked `sweep`, one case in four, others on another day.

The seed is the day's number, or TEST_SEED; each run prints it at its end. ``--full`` runs all
cases, and a case that is named on the command line runs always. ``--third`` runs a third of the
files, another third each day: CI does so with a second torch.
"""

import datetime
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ONE_IN = 4


def seed() -> int:
    """The seed of this run, the same in all its processes, also over midnight."""
    return int(os.environ.setdefault("TEST_SEED", str(datetime.date.today().toordinal())))


def is_drawn(test: str, case: int) -> bool:
    """Whether this case of a test is drawn.

    Neighbours are often much alike, so one case is drawn of each four in a row.
    """
    row, place = divmod(case, ONE_IN)
    return zlib.crc32(f"{seed()} {test} {row}".encode()) % ONE_IN == place


def left_out(items: Sequence[pytest.Item], named: Sequence[str]) -> list[pytest.Item]:
    """The cases of sweeps that the quick run leaves to other days."""
    counts = Counter[str]()
    out = []
    for item in items:
        if item.get_closest_marker("sweep") is None:
            continue
        test = item.nodeid.partition("[")[0]
        if not is_drawn(test, counts[test]) and item.nodeid not in named:
            out.append(item)
        counts[test] += 1
    return out


def is_in_third(path: Path) -> bool:
    """Whether a file of tests is in the third of this day."""
    name = path.relative_to(TESTS).as_posix()
    return (zlib.crc32(name.encode()) + seed()) % 3 == 0


def describe(is_third: bool) -> str:
    """The line that each quick run prints."""
    files = "a third of the files, and " if is_third else ""
    return f"{files}of sweeps one case in {ONE_IN}, drawn by TEST_SEED={seed()}; --full runs all"
