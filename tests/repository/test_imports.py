"""The import graph of the package's modules is acyclic.

Imports are read from the source text, so an import inside a function or for types alone counts.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchlayers

ROOT = Path(torchlayers.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted([*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi")])
}


def imported(text: str) -> Iterator[str]:
    """The modules of the package that a module's text imports, by name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES:
                    yield inner
                elif node.module in MODULES:
                    yield node.module


def circle(imports: dict[str, set[str]]) -> list[str]:
    """A cycle of modules, each importing the next; empty if there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_module_imports_itself_by_way_of_others():
    found = circle({name: {*imported(path.read_text())} for name, path in MODULES.items()})
    assert not found, " imports ".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "from torchlayers import tree",
        "import torchlayers.tree",
        "from torchlayers.tree import flatten",
        "def f():\n    from torchlayers.tree import flatten",
        "if TYPE_CHECKING:\n    from torchlayers import tree",
    ],
)
def test_an_import_is_found_wherever_it_stands(text):
    assert [*imported(text)] == ["torchlayers.tree"]


def test_a_circle_is_named_in_order():
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) in (
        ["a", "b", "c", "a"],
        ["b", "c", "a", "b"],
        ["c", "a", "b", "c"],
    )


def test_importing_the_package_does_not_import_the_algebra_of_symbolic_shapes():
    """Importing sympy takes twice as long as importing the package itself."""
    code = "import sys, torch, torch.func, torchlayers; print('sympy' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "False"


def test_first_calls_give_no_warnings():
    """torch's forward mode is partly written with torch.jit, of which torch warns its users."""
    code = (
        "import torch, torchlayers as tl; x = torch.ones(2); tl.jvp(torch.sin, (x,), (x,));"
        "tl.vmap(tl.grad(torch.sin))(x); tl.hessian(lambda x: x.prod())(x)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
