"""Counts names of the package that say little to a reader who does not know it.

Words such as ``given``, ``found`` and ``each`` bound as names, and functions named by a participle
or a preposition alone, such as ``_made`` and ``of``. ``python -m tests.repository.plain_names``
prints them, with ``--write`` it lowers the limits in plain_names.txt to the counts of today.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torchlayers"
LIMITS = Path(__file__).with_name("plain_names.txt")
WORDS = {"each", "found", "given", "held", "kept", "made", "own", "said", "theirs", "told"}
VERBS_WITHOUT_OBJECT = {"asked", "at", "known", "made", "of", "read"}


class Binding(NamedTuple):
    """A name that is bound: a variable, an argument, a function, a class or an attribute."""

    name: str
    line: int
    is_function: bool = False

    @property
    def is_plain(self) -> bool:
        word = self.name.strip("_")
        return word not in WORDS and not (self.is_function and word in VERBS_WITHOUT_OBJECT)


def bindings(source: str) -> Iterator[Binding]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Binding(name, node.lineno, is_function=True)
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.ClassDef(name=name)
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
                | ast.ExceptHandler(name=str(name))
                | ast.alias(asname=str(name))
            ):
                yield Binding(name, getattr(node, "lineno", 0))


def unclear() -> Iterator[tuple[Path, Binding]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for binding in bindings(path.read_text()):
            if not binding.is_plain:
                yield path.relative_to(ROOT), binding


def room_of(path: Path) -> str:
    """The folder, with those inside it: ``torchlayers/compiler/passes``."""
    return "/".join(path.parts[:-1][:3])


def counts() -> Counter[str]:
    """The number of unclear names of each room."""
    return Counter(room_of(path) for path, _ in unclear())


def limits() -> dict[str, int]:
    lines = LIMITS.read_text().splitlines() if LIMITS.exists() else []
    return {room: int(number) for room, number in map(str.split, lines)}


def write_limits() -> None:
    """Lowers the limits; none rises."""
    before, now = limits(), counts()
    lowered = {room: min(now[room], before.get(room, now[room])) for room in now} if before else now
    LIMITS.write_text("".join(f"{room} {lowered[room]}\n" for room in sorted(lowered)))


def main(arguments: list[str]) -> None:
    if "--write" in arguments:
        write_limits()
        return
    for path, binding in unclear():
        print(f"{path}:{binding.line}: {binding.name}")
    print(sum(counts().values()))


if __name__ == "__main__":
    main(sys.argv[1:])
