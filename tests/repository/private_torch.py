"""Private names of torch that torchlayers uses, and what the installed torch has under them.

``python -m tests.repository.private_torch`` prints what the installed torch has otherwise than
recorded; ``--write`` records it, for a new torch, or for a change that uses another name.
"""

import ast
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

PACKAGE = Path(__file__).parents[2] / "torchlayers"
LIST = Path(__file__).with_name("private_torch.txt")
GONE = "is gone"
HERE = ".".join(torch.__version__.split(".")[:2])
_PYTHONS = {
    "_asdict",
    "_at_fork_reinit",
    "_exit",
    "_getframe",
    "_is_owned",
    "_lru_cache_wrapper",
    "_replace",
}
_NAMESPACES = {
    "aten": "aten",
    "c10d_functional": "_c10d_functional",
    "higher_order": "higher_order",
}
# Functions that take the name of a part of torch.
_BY_NAME = ("lookup", "private_class", "patch", "Patch")
_LOOKUP = PACKAGE / "core" / "private_names.py"


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


class Uses(NamedTuple):
    """The uses in the package: dotted names, private attributes of torch's objects, operators."""

    names: set[str]
    attributes: set[str]
    operators: set[str]

    def lines(self) -> list[str]:
        """As in the list: a name, ``.attribute``, ``@aten.operator``."""
        return [
            *sorted(self.names),
            *sorted(f".{name}" for name in self.attributes),
            *sorted(f"@{name}" for name in self.operators),
        ]


def uses() -> Uses:
    """Reads all modules of the package."""
    modules = [ast.parse(path.read_text()) for path in _files()]
    shared = dict(_namespaces(ast.parse((PACKAGE / "core" / "torch_private.py").read_text())))
    ours = {name for module in modules for name in _defined(module)}
    used = Uses(set(), set(), set())
    for module in modules:
        _Reader(module, shared, used).visit(module)
    used.names.update(_in_cpp())
    attributes = {name for name in used.attributes - ours - _PYTHONS if "torchlayers" not in name}
    return used._replace(attributes=attributes)


def _files() -> list[Path]:
    files = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")])
    return [path for path in files if path != _LOOKUP]


def _in_cpp() -> Iterator[str]:
    """The private names that C++ imports, as ``imported("torch.module", "name")``."""
    for path in sorted((PACKAGE.parent / "csrc").rglob("*.cpp")):
        for module, name in re.findall(r'"(torch(?:\.\w+)*)",\s*"(\w+)"', path.read_text()):
            if _is_private_of_torch(f"{module}.{name}"):
                yield f"{module}.{name}"


class _Reader(ast.NodeVisitor):
    """Collects the uses in one module."""

    def __init__(self, module: ast.Module, shared: dict[str, str], used: Uses) -> None:
        self.used = used
        self.parts = {"torch": "torch", **dict(_imported(module))}
        self.namespaces = {**_shared(module, shared), **dict(_namespaces(module))}
        self.constants = dict(_constants(module))
        self.used.names.update(filter(_is_private_of_torch, self.parts.values()))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and self._add(inner.id, parts):
            return
        self.used.attributes.update(filter(is_private, parts))
        self.visit(inner)

    def visit_Call(self, node: ast.Call) -> None:
        """``lookup("torch._x", None)``, ``getattr(torch.compiler, "_x", False)``."""
        function = node.func.id if isinstance(node.func, ast.Name) else None
        if function in _BY_NAME and node.args:
            match node.args[0]:
                case ast.Constant(value=str(name)):
                    self.used.names.add(name)
                case ast.Name(id=constant) if constant in self.constants:
                    self.used.names.add(self.constants[constant])
        if function == "getattr":
            match node.args:
                case [owner, ast.Constant(value=str(name)), *_]:
                    self.visit(ast.Attribute(owner, name, ast.Load()))
                    self.generic_visit(ast.Tuple(node.args[2:], ast.Load()))
                    return
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """``{"torch._x": ...}``, as the table of torchlayers/patches."""
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        names = filter(_is_private_of_torch, (key for key in keys if isinstance(key, str)))
        self.used.names.update(names)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Type checkers alone read the imports of ``if TYPE_CHECKING``."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for inner in node.orelse:
                self.visit(inner)
        else:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # not a docstring
            self.generic_visit(node)

    def _add(self, first: str, rest: list[str]) -> bool:
        """Adds the name that an expression spells, if it starts at a part of torch."""
        if first in _NAMESPACES:
            self.used.operators.add(".".join([_NAMESPACES[first], *rest[:2]]))
        elif first in self.namespaces:
            self.used.names.add(f"{self.namespaces[first]}.{rest[0]}")
        elif first in self.parts:
            name = ".".join([self.parts[first], *rest])
            if _is_private_of_torch(name) and not name.startswith("torch.ops."):
                self.used.names.add(_up_to_private(name))
        else:
            return False
        return True


def _constants(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text


def _at_run_time(module: ast.Module) -> Iterator[ast.AST]:
    """The nodes outside ``if TYPE_CHECKING``."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module binds to parts of torch."""
    for node in _at_run_time(module):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.startswith("torch."):
                    yield (each.asname or each.name), each.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                yield (each.asname or each.name), f"{node.module}.{each.name}"


def _namespaces(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module binds to ``private("torch.…")``."""
    for node in module.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="private"), args=[ast.Constant(value=path)]),
            ):
                yield name, path


def _shared(module: ast.Module, shared: dict[str, str]) -> dict[str, str]:
    """The namespaces that a module imports from core/torch_private.py."""
    return {
        each.name: shared[each.name]
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module == "torchlayers.core.torch_private"
        for each in node.names
        if each.name in shared
    }


def _is_private_of_torch(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "torch" and any(map(is_private, rest))


def _up_to_private(name: str) -> str:
    """The name up to one part after the last ``_`` part; later attributes, of an object, are cut
    off."""
    parts = name.split(".")
    last = max(i for i, part in enumerate(parts) if is_private(part))
    return ".".join(parts[: last + 2])


def _defined(module: ast.Module) -> Iterator[str]:
    """Attributes, methods and functions that the package's own code defines."""
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def describe(line: str, words: set[str]) -> str:
    """One line describing what torch has for a line of the list."""
    if line.startswith("."):
        return "attribute" if line[1:] in words else GONE
    if line.startswith("@"):
        return "operator" if find(f"torch.ops.{line[1:]}") is not None else GONE
    held = find(line)
    return GONE if held is None else _describe_object(held[0])


def find(name: str) -> tuple[Any] | None:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            held: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(held, part):
                return None
            held = getattr(held, part)
        return (held,)
    return None


def _describe_object(held: Any) -> str:
    if inspect.ismodule(held):
        return "module"
    if inspect.isclass(held):
        return f"class{_parameters(held.__init__)}"
    if callable(held):
        return f"function{_parameters(held)}"
    return type(held).__name__


def _parameters(function: Any) -> str:
    """Names and kinds only: defaults and annotations are printed differently by each Python
    version."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # C++: pybind writes the signature first in __doc__
        said = re.match(r"\w+\((.*)\) -> ", str(function.__doc__))
        return "({})".format(", ".join(re.findall(r"(\w+): ", said[1]))) if said else ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return f"({', '.join(marks.get(each.kind, '') + each.name for each in parameters)})"


def _words() -> set[str]:
    """Words in torch's Python sources, and attributes of its C++ classes."""
    sources = (path.read_text() for path in Path(torch.__file__).parent.rglob("*.py"))
    words = {word for text in sources for word in re.findall(r"\b_[a-zA-Z]\w*", text)}
    return words | {*dir(torch.Tensor), *dir(torch._C.Node)}


def found(lines: list[str]) -> dict[str, str]:
    """What the installed torch has for each line."""
    words = _words()
    return {line: describe(line, words) for line in lines}


class Listed(NamedTuple):
    """The stored list: for each line, what each of the recorded versions has."""

    versions: list[str]
    lines: dict[str, dict[str, str]]

    def expected(self, line: str, version: str = HERE) -> str:
        """What a version has; one that is not recorded, what the nearest has."""
        minor = int(version.split(".")[1])
        nearest = min(self.versions, key=lambda v: abs(int(v.split(".")[1]) - minor))
        return self.lines[line][nearest]


def read_list() -> Listed:
    """``name | kind | 2.15: kind``: the kind in all recorded versions but those named."""
    first, *rest = LIST.read_text().splitlines()
    versions = first.split(" ")[1:]
    lines = {}
    for text in rest:
        line, kind, *others = text.split(" | ")
        lines[line] = dict.fromkeys(versions, kind)
        lines[line] |= dict(other.split(": ", 1) for other in others)
    return Listed(versions, lines)


def format_list(listed: Listed) -> str:
    rows = []
    for line, kinds in listed.lines.items():
        usual = Counter(kinds.values()).most_common(1)[0][0]
        others = [f"{version}: {kind}" for version, kind in kinds.items() if kind != usual]
        rows.append(" | ".join([line, usual, *others]))
    return "\n".join(["torch " + " ".join(listed.versions), *rows])


def recorded() -> Listed:
    """The list with the names that are used now, and what the installed torch has for them.

    A line that is new has no other version's column: it gets the installed torch's, until the
    command runs with that version.
    """
    before, lines = read_list(), uses().lines()
    versions = sorted({*before.versions, HERE}, key=lambda v: int(v.split(".")[1]))
    here = found(lines)
    return Listed(
        versions,
        {
            line: {
                version: here[line]
                if version == HERE
                else before.lines.get(line, {}).get(version, here[line])
                for version in versions
            }
            for line in lines
        },
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        LIST.write_text(format_list(recorded()) + "\n")
    listed = read_list()
    now = found([*listed.lines])
    if "--json" in sys.argv:
        print(json.dumps(now))
    else:
        for line, kind in now.items():
            if kind != (then := listed.expected(line)):
                print(f"{line}: {kind}, was {then}")
