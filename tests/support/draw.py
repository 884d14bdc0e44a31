"""The draw of the quick run: of each test marked `sweep`, one case in four, others on another day;
of one marked `sweep(one_in=16)`, whose cases take seconds, one in sixteen. A test that is a single
case, or fewer cases than that, is not run on every day.

The seed is the day's number, or TEST_SEED; each run prints it at its end. ``--full`` runs all
cases, and a case that is named on the command line runs always.
"""

import datetime
import os
import zlib

import pytest

ONE_IN = 4
_not_today: set[str] = set()  # tests none of whose cases is drawn


def seed() -> int:
    """The seed of this run, the same in all its processes, also over midnight."""
    return int(os.environ.setdefault("TEST_SEED", str(datetime.date.today().toordinal())))


def is_drawn(test: str, case: int, one_in: int) -> bool:
    """Whether this case of a test is drawn.

    Neighbours are often much alike, so one case is drawn of each four (or so) in a row.
    """
    row, place = divmod(case, one_in)
    return zlib.crc32(f"{seed()} {test} {row}".encode()) % one_in == place


def thin_out(metafunc: pytest.Metafunc) -> None:
    """Leaves the cases of a sweep that are not drawn to other days.

    They never become items of pytest, which takes long for many thousands.
    """
    definition = metafunc.definition
    mark = definition.get_closest_marker("sweep")
    if mark is None:
        return
    one_in = mark.kwargs.get("one_in", ONE_IN)
    test, named = definition.nodeid, metafunc.config.args
    calls = metafunc._calls  # what parametrize has made; there is no public way to have fewer
    drawn = [
        call
        for case, call in enumerate(calls)
        if is_drawn(test, case, one_in) or f"{test}[{call.id}]" in named
    ]
    if not drawn and (calls or not is_drawn(test, 0, one_in)):
        _not_today.add(test)
    metafunc._calls = drawn or calls[:1]  # pytest makes an item of a test without cases, too


def is_for_today(item: pytest.Item) -> bool:
    """Whether a case of the item's test is drawn, or the item is named on the command line."""
    test = item.nodeid.partition("[")[0]
    return test not in _not_today or bool({test, item.nodeid} & {*item.config.args})


def describe() -> str:
    """The line that each quick run prints."""
    return f"of sweeps one case in {ONE_IN} or more, by TEST_SEED={seed()}; --full runs all"
