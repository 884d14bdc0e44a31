"""The notes, NOTE [Name]: each is defined once, listed in csrc/README.md's table, and found there.

A note is defined where a comment line is its name, or where its name is followed by a colon and the
text. Anywhere else it is a reference.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"NOTE \[(?P<name>[^\]]+)\](?P<colon>:?)")
ALONE = re.compile(
    r"^(?P<mark> *(?://|#)? ?)NOTE \[(?P<name>[^\]]+)\]\n(?P=mark)(?=\S)", re.MULTILINE
)
ROW = re.compile(r"^\| (?P<name>[^|]+) \| `(?P<path>[^`]+)` \|$", re.MULTILINE)


class Mention(NamedTuple):
    name: str
    path: str  # as listed in the table
    is_written: bool


def mentions() -> list[Mention]:
    return [
        Mention(
            re.sub(r"\s*\n\W*", " ", found["name"]),
            path.relative_to(ROOT).as_posix().removeprefix("csrc/"),
            bool(found["colon"]) or found.start() in alone,
        )
        for folder in ("csrc", "torchlayers")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".cpp", ".py", ".pyi")
        for text in [path.read_text(encoding="utf-8")]
        for alone in [{found.end("mark") for found in ALONE.finditer(text)}]
        for found in NAMED.finditer(text)
    ]


def table() -> list[tuple[str, str]]:
    text = (ROOT / "csrc" / "README.md").read_text(encoding="utf-8")
    rows = text.partition("\n## The notes\n")[2]
    return [(row["name"], row["path"]) for row in ROW.finditer(rows)]


def test_the_table_has_every_note_and_the_file_that_it_is_in():
    written = [(each.name, each.path) for each in mentions() if each.is_written]
    assert len(written) > 40
    assert sorted(table()) == sorted(written)


def test_a_note_is_written_once():
    names = [name for name, _ in table()]
    assert sorted(set(names)) == sorted(names)


def test_every_note_that_is_pointed_to_is_there():
    names = {name for name, _ in table()}
    lost = [each for each in mentions() if not each.is_written and each.name not in names]
    assert not lost
