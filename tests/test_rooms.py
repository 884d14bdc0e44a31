"""The rooms of csrc: what is in one reads what is below it, and nothing above."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parent.parent / "csrc"
# From the lowest up. Each reads itself and those before it.
ROOMS = ["core", "values", "rules", "reverse", "layers", "dispatch", "graph", "compiled", "python"]
FILES = sorted([*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")])
# Who may read Python's headers: the room that knows Python, and the bindings of graphs.
KNOWS_PYTHON = {"python", "graph"}


def room_of(path):
    return path.parts[0]


def included_by(path):
    return [Path(name) for name in re.findall(r'#include "(.+)"', path.read_text())]


def test_every_file_is_in_a_room():
    rooms = {room_of(path.relative_to(CSRC)) for path in FILES}
    assert rooms - {"precompiled.h"} == {*ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_points_up(room):
    upwards = [
        f"{path.relative_to(CSRC)} reads {name}"
        for path in (CSRC / room).rglob("*.[hc]*")
        for name in included_by(path)
        if ROOMS.index(room_of(name)) > ROOMS.index(room)
    ]
    assert upwards == []


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in KNOWS_PYTHON])
def test_only_the_top_knows_python(room):
    readers = [
        path.name
        for path in (CSRC / room).rglob("*.[hc]*")
        if re.search(r"pybind|Python\.h|csrc/utils/pybind", path.read_text())
    ]
    assert readers == []


def test_what_is_read_is_written_from_csrc():
    lost = [
        f"{path.relative_to(CSRC)} reads {name}"
        for path in FILES
        for name in included_by(path)
        if not (CSRC / name).exists()
    ]
    assert lost == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CSRC)))
def test_a_file_is_read_in_one_sitting(path):
    if room_of(path.relative_to(CSRC)) not in ("rules", "graph"):  # where a file is a table
        assert len(path.read_text().splitlines()) <= 350


# What is true of one device and not of another, apart from torch's names of functions.
ASKS = {
    "core/device.h": r"\bis_(cpu|cuda|meta)\(|\bk(CPU|CUDA|Meta)\b|\bDeviceType::\w",
    "device.py": r"[\"'](cpu|cuda|meta)[\"']|\bis_(cpu|cuda|meta)\b|torch\.(cuda|accelerator)\b",
}


@pytest.mark.parametrize("place", ASKS)
def test_devices_are_asked_about_in_one_place(place):
    """Elsewhere a device is one that a tensor is on, whichever it is."""
    folder = CSRC if place.endswith(".h") else CSRC.parent / "torchlayers"
    askers = [
        f"{path.relative_to(folder)}:{number}"
        for path in sorted(folder.rglob("*.[hc]*" if folder == CSRC else "*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(ASKS[place], line) and path != folder / place
    ]
    assert askers == []
    assert re.search(ASKS[place], (folder / place).read_text())
