"""What became of the mutants: a line of JSON for each, and tables of them."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant


@dataclass(frozen=True)
class Result:
    """Attributes:
    name: of the mutant.
    room: of the mutant.
    seen_by: the test that failed; "" if none did.
    seconds: how long its tests took, without compilation.
    """

    name: str
    room: str
    seen_by: str
    seconds: float


def append(path: Path, result: Result) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(path: Path) -> dict[str, Result]:
    """The last result of each mutant, by its name."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {result.name: result for result in results}


def by_room(results: Iterable[Result]) -> str:
    """A Markdown table: for each room how many mutants there are, how many were seen, and in which
    files of tests."""
    rooms: dict[str, list[Result]] = {}
    for result in results:
        rooms.setdefault(result.room, []).append(result)
    lines = ["| room | mutants | seen | by tests in |", "|---|---|---|---|"]
    for room, group in sorted(rooms.items()):
        seen = [result for result in group if result.seen_by]
        files = Counter(_folder_of(result.seen_by) for result in seen)
        lines.append(f"| {room} | {len(group)} | {len(seen)} | {', '.join(sorted(files))} |")
    everything = [result for group in rooms.values() for result in group]
    seen = [result for result in everything if result.seen_by]
    return "\n".join([*lines, f"| all | {len(everything)} | {len(seen)} | |"])


def _folder_of(seen_by: str) -> str:
    path, is_test, _ = seen_by.partition("::")
    return str(Path(path).parent.relative_to("tests")) if is_test else "no end, or a crash"


def not_seen(results: Iterable[Result], mutants: Iterable[Mutant]) -> str:
    """A Markdown list of the mutants that no test saw."""
    missed = {result.name for result in results if not result.seen_by}
    return "\n".join(
        f"- {mutant.name} ({mutant.file}): {mutant.fault}"
        for mutant in mutants
        if mutant.name in missed
    )
