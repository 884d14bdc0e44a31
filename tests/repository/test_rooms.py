"""The layering of csrc and torchlayers: a room (folder) includes or imports only rooms below it."""

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
PACKAGE = CSRC.parent / "torchlayers"
# From lowest to highest. Each may include itself and those before it.
ROOMS = [
    "core",
    "sparse",
    "values",
    "rules",
    "reverse",
    "layers",
    "dispatch",
    "graph",
    "compiled",
    "python",
]
FILES = sorted([*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")])
# The room that may include Python's headers.
KNOWS_PYTHON = "python"


def room_of(path):
    return path.parts[0]


def included_by(path):
    return [Path(name) for name in re.findall(r'#include "(.+)"', path.read_text())]


def test_every_file_is_in_a_room():
    rooms = {room_of(path.relative_to(CSRC)) for path in FILES}
    assert rooms - {"precompiled.h"} == {*ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_csrc_files_include_only_lower_rooms(room):
    upwards = [
        f"{path.relative_to(CSRC)} reads {name}"
        for path in (CSRC / room).rglob("*.[hc]*")
        for name in included_by(path)
        if ROOMS.index(room_of(name)) > ROOMS.index(room)
    ]
    assert upwards == []


def test_the_header_of_operators_lists_those_that_are_called():
    header = CSRC / "core" / "aten_functions.h"
    listed = re.findall(r"<ATen/ops/(\w+)\.h>", header.read_text())
    texts = [path.read_text() for path in FILES]
    called = {name for text in texts for name in [*CALLED.findall(text), *called_by_macros(text)]}
    called |= {name.removesuffix("_symint") for name in called}
    # Rules call these without at::, because they may be for numbers.
    called |= {
        *re.findall(r"\w+", (CSRC / "rules" / "small_tensors" / "scalar_math.h").read_text())
    }
    assert listed == sorted(set(listed) & called)


CALLED = re.compile(r"\bat::(\w+)")
MACRO = re.compile(r"^#define (\w+)\(([^)]*)\)((?:.*\\\n)*.*)", re.MULTILINE)


def called_by_macros(text):
    """The operators whose names are arguments of macros: at::name##_backward(...)."""
    for macro, parameters, body in MACRO.findall(text):
        for i, parameter in enumerate(re.split(r",\s*", parameters)):
            ends = re.findall(rf"\bat::{parameter}\b(?:##(\w+))?", body)
            for arguments in re.findall(rf"\b{macro}\(([^()]*)", text) if ends else ():
                name = [*re.split(r",\s*", arguments), *[""] * i][i].strip()
                yield from (name + end for end in ends)


def test_no_other_file_includes_operators():
    readers = [
        str(path.relative_to(CSRC))
        for path in FILES
        if re.search(r"<ATen/(ATen|Functions|ops/\w+)\.h>", path.read_text())
    ]
    assert readers == ["core/aten_functions.h"]


@pytest.mark.parametrize("room", [room for room in ROOMS if room != KNOWS_PYTHON])
def test_only_the_top_room_includes_python(room):
    readers = [
        path.name
        for path in (CSRC / room).rglob("*.[hc]*")
        if re.search(r"pybind|Python\.h|csrc/utils/pybind", path.read_text())
    ]
    assert readers == []


def test_includes_are_written_relative_to_csrc():
    lost = [
        f"{path.relative_to(CSRC)} reads {name}"
        for path in FILES
        for name in included_by(path)
        if not (CSRC / name).exists()
    ]
    assert lost == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CSRC)))
def test_file_length_is_limited(path):
    if room_of(path.relative_to(CSRC)) not in ("rules", "graph"):  # where a file is a table
        assert count_lines(path) <= 350


SOURCES = [*FILES, *(path for ending in ("py", "pyi") for path in PACKAGE.rglob(f"*.{ending}"))]


def test_a_folder_has_at_most_thirty_files():
    counts = Counter(path.parent.relative_to(CSRC.parent).as_posix() for path in SOURCES)
    assert {folder: count for folder, count in counts.items() if count > 30} == {}


def test_product_files_have_at_most_400_lines():
    lines = {path.relative_to(CSRC.parent).as_posix(): count_lines(path) for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > 400} == {}


def count_lines(path):
    return len(path.read_text("utf-8").splitlines())


# Tests for a particular kind of device, apart from names of torch's functions.
ASKS = {
    "core/device.h": r"\bis_(cpu|cuda|meta)\(|\bk(CPU|CUDA|Meta)\b|\bDeviceType::\w",
    "core/device.py": r"[\"'](cpu|cuda|meta)[\"']|\bis_(cpu|cuda|meta)\b"
    r"|torch\.(cuda|accelerator)\b",
}


@pytest.mark.parametrize("place", ASKS)
def test_devices_are_asked_about_in_one_place(place):
    """Elsewhere, code uses a tensor's device without asking which kind it is."""
    folder = CSRC if place.endswith(".h") else PACKAGE
    askers = [
        f"{path.relative_to(folder)}:{number}"
        for path in sorted(folder.rglob("*.[hc]*" if folder == CSRC else "*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(ASKS[place], line) and path != folder / place
    ]
    assert askers == []
    assert re.search(ASKS[place], (folder / place).read_text())


# The floors of the Python half, lowest first, and the rooms on each. A module imports its own room
# and rooms of lower floors, inside functions too.
FLOORS = [
    ["core"],
    ["distributed", "fx"],
    ["random", "taps"],
    ["remat"],
    ["transforms"],
    ["autograd_function", "modules"],
    ["compiler", "control_flow", "graph"],
    ["implicit", "patches"],
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# The order inside the compiler; modules in none of these folders are above them.
COMPILER = ["capture", "passes", "inductor", "runtime"]
# Allowed upward imports, by file and imported module, with the reason.
EXCEPTIONS = {}
# Public module names that programs import by path, and the modules behind each.
FACADES = {
    "checkpoint_policies.py": "torchlayers.remat.policies",
    "compiled.py": "torchlayers.compiler",
    "debug.py": "torchlayers.control_flow.debug",
    "distributed/sent.py": "torchlayers.distributed.traffic",
    "errors.py": "torchlayers.core.errors",
    "extend.py": "torchlayers.core.operator_rules.custom_rules "
    "torchlayers.transforms.layers.statements",
    "graph/script.py": "torchlayers.graph.torchscript",
    "memory.py": "torchlayers.core.tensors.peak_memory",
    "testing.py": "torchlayers.transforms.testing",
    "tree.py": "torchlayers.core.pytree torchlayers.core.ravel",
}
ROOT_FILES = {"__init__.py", "_build_check.py", "_install.py", *FACADES} - {
    facade for facade in FACADES if "/" in facade
}
PYTHON = sorted(PACKAGE.rglob("*.py"))


def is_module(name):
    path = CSRC.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imported_by(text):
    """The modules of the package that a module's text imports, without torchlayers._C."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [each if is_module(each) else node.module for each in inner]
            found = [] if inner == ["torchlayers._C"] else found
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
        else:
            continue
        for name in found:
            if name.partition(".")[0] == "torchlayers" and name != "torchlayers._C":
                yield name


def height_of(parts):
    """The floor, and the place inside the compiler, of a module or file given by the parts of its
    path."""
    room, *rest = parts
    if room not in FLOOR_OF:  # the package itself, and modules in its root
        return len(FLOORS), 0
    is_placed = room == "compiler" and rest and rest[0] in COMPILER
    return FLOOR_OF[room], COMPILER.index(rest[0]) if is_placed else len(COMPILER)


def points_up(path):
    """Imports of a file that its room does not allow."""
    reader = path.relative_to(PACKAGE).parts
    for name in sorted({*imported_by(path.read_text("utf-8"))}):
        parts = name.split(".")[1:] or ["__init__"]
        floor, place = height_of(parts)
        own_floor, own_place = height_of(reader)
        is_inside = parts[0] == reader[0] and parts[0] in FLOOR_OF
        if (place > own_place) if is_inside else (floor >= own_floor):
            yield "/".join(reader), name


IN_ROOMS = [path for path in PYTHON if path.parent != PACKAGE]


def test_every_module_is_in_a_room():
    assert {path.relative_to(PACKAGE).parts[0] for path in IN_ROOMS} == {*FLOOR_OF}
    assert {path.name for path in PYTHON if path.parent == PACKAGE} == ROOT_FILES
    assert len(FLOOR_OF) <= 14 and len(FLOORS) <= 8


def test_modules_import_only_lower_rooms():
    upwards = [found for path in IN_ROOMS for found in points_up(path)]
    assert [found for found in upwards if found not in EXCEPTIONS] == []
    assert {*EXCEPTIONS} <= {*upwards}, "an exception is no longer needed"


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("core/a.py", "from torchlayers.fx import nodes", ["torchlayers.fx.nodes"]),
        ("core/a.py", "def f():\n    import torchlayers.fx.nodes", ["torchlayers.fx.nodes"]),
        (
            "fx/a.py",
            "from torchlayers.distributed.axes import size",
            ["torchlayers.distributed.axes"],
        ),
        ("fx/a.py", "from torchlayers import errors", ["torchlayers.errors"]),
        ("fx/a.py", "import_module('torchlayers.graph.errors')", ["torchlayers.graph.errors"]),
        ("fx/a.py", "from torchlayers import vmap", ["torchlayers"]),
        ("fx/a.py", "from torchlayers import _C\nfrom torchlayers.core import pytree", []),
        (
            "compiler/capture/a.py",
            "from torchlayers.compiler import api",
            ["torchlayers.compiler.api"],
        ),
        ("compiler/api.py", "from torchlayers.compiler.capture import record", []),
    ],
)
def test_upward_imports_are_detected(file, text, found, monkeypatch):
    monkeypatch.setattr(type(CSRC), "read_text", lambda *_: text)
    assert [name for _, name in points_up(PACKAGE / file)] == found


@pytest.mark.parametrize("facade", FACADES)
def test_a_facade_has_the_names_of_the_module_behind_it(facade):
    """The facade defines no function or class of its own."""
    shown = importlib.import_module("torchlayers." + facade.removesuffix(".py").replace("/", "."))
    behind = {}
    for module in FACADES[facade].split():
        behind |= vars(importlib.import_module(module))
    assert shown.__all__
    assert all(getattr(shown, name) is behind[name] for name in shown.__all__)
    allowed = (ast.Expr, ast.ImportFrom, ast.Assign)
    body = ast.parse((PACKAGE / facade).read_text("utf-8")).body
    assert all(isinstance(node, allowed) for node in body)
