"""Private names of torch that torchlayers uses, and their definitions in the installed torch.

``python -m tests.repository.private_torch`` prints what an installed torch has changed; ``--write``
regenerates the list, for a change that uses another private name.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

PACKAGE = Path(__file__).parents[2] / "torchlayers"
LIST = Path(__file__).with_name("private_torch.txt")
GONE = "is gone"
_PYTHONS = {
    "_asdict",
    "_at_fork_reinit",
    "_exit",
    "_getframe",
    "_is_owned",
    "_lru_cache_wrapper",
    "_replace",
}
_MODULE_NAMES = ("torch", "_torch")  # `_torch: Any = torch` keeps mypy out of private names


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


class Uses(NamedTuple):
    """The private uses in the package: dotted names, and private attributes of torch's objects."""

    names: set[str]
    attributes: set[str]


def uses() -> Uses:
    """Reads all modules of the package."""
    names, attributes, own = set[str](), set[str](), set[str]()
    for path in sorted(PACKAGE.rglob("*.py*")):
        if path.suffix not in (".py", ".pyi"):
            continue
        module = ast.parse(path.read_text())
        own |= {*_defined(module)}
        bound = dict(_imported(module))
        names |= {name for name in bound.values() if _is_private_of_torch(name)}
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute):
                if (dotted := _dotted(node, bound)) is None:
                    attributes |= {node.attr} if is_private(node.attr) else set()
                elif _is_private_of_torch(dotted):
                    names.add(_up_to_private(dotted))
    return Uses(names, {name for name in attributes - own - _PYTHONS if "torchlayers" not in name})


def _imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module binds to parts of torch."""
    yield from ((name, "torch") for name in _MODULE_NAMES)
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.startswith("torch."):
                    yield (each.asname or each.name), each.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                yield (each.asname or each.name), f"{node.module}.{each.name}"


def _dotted(node: ast.Attribute, bound: dict[str, str]) -> str | None:
    """The dotted name that an expression spells, if it starts at a part of torch."""
    parts, inner = [node.attr], node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id not in bound:
        return None
    return ".".join([bound[inner.id], *reversed(parts)])


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


def describe(name: str) -> str:
    """One line describing what torch has under a name: the parameters, if it is callable."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            held: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(held, part):
                return GONE
            held = getattr(held, part)
        return _describe_object(held)
    return GONE


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


def attributes_of_torch() -> set[str]:
    """Words in torch's Python sources, attributes of its C++ classes, and operators."""
    sources = (path.read_text() for path in Path(torch.__file__).parent.rglob("*.py"))
    words = {word for text in sources for word in re.findall(r"\b_[a-zA-Z]\w*", text)}
    operators = (re.split("::|[.]", name)[1] for name in torch._C._dispatch_get_all_op_names())
    return words | {*dir(torch.Tensor), *dir(torch._C.Node), *operators}


class Listed(NamedTuple):
    """The stored list."""

    version: str
    names: dict[str, str]
    attributes: set[str]


def read_list() -> Listed:
    first, *lines = LIST.read_text().splitlines()
    names = dict(line.split(" | ") for line in lines if " | " in line)
    attributes = {line.removeprefix(".") for line in lines if line.startswith(".")}
    return Listed(first.rpartition(" ")[2], names, attributes)


def format_list(used: Uses) -> str:
    version = torch.__version__.partition("+")[0]
    names = [f"{name} | {describe(name)}" for name in sorted(used.names)]
    return "\n".join(
        [f"as in torch {version}", *names, *(f".{a}" for a in sorted(used.attributes))]
    )


def differences() -> list[str]:
    """The names for which the installed torch differs from the list."""
    kept = read_list()
    changed = [
        f"{name}: {now}, was {then}"
        for name, then in kept.names.items()
        if (now := describe(name)) != then
    ]
    gone = sorted(kept.attributes - attributes_of_torch())
    return [*changed, *(f".{name}: {GONE}" for name in gone)]


if __name__ == "__main__":
    if "--write" in sys.argv:
        LIST.write_text(format_list(uses()) + "\n")
    print(*differences(), sep="\n")
