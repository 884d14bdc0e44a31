"""Which commits added instructions: the counts of docs/benchmarks.md through git's history.

``python -m benchmarks.instruction_history`` prints, for each commit that changed the table of
``python -m benchmarks.instructions``, what rose or fell by 1 % or more, and the commits since the
last table that touched the package. For a commit in between, check it out, build it, and run
``python -m benchmarks.instructions``, which shows the changes against the page.
"""

import argparse
import itertools
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = "docs/benchmarks.md"
CODE = ("csrc", "torchlayers")
LEAST = 0.01  # of a count
ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<peer>[^|]+) \| (?P<count>[\d,]+) \|", re.MULTILINE)
MARKERS = "<!-- instructions: begin -->", "<!-- instructions: end -->"

# By what was counted and by peer.
Counts = dict[tuple[str, str], int]


class Change(NamedTuple):
    """A count before and after."""

    what: str
    before: int
    after: int

    @property
    def share(self) -> float:
        return self.after / self.before - 1

    def __str__(self) -> str:
        return f"{self.what}: {self.before:,} -> {self.after:,} ({self.share:+.1%})"


def counts_in(page: str) -> Counts:
    """The instructions in the page's table."""
    _, _, rest = page.partition(MARKERS[0])
    text, _, _ = rest.partition(MARKERS[1])
    found = {}
    for row in ROW.finditer(text):
        found[row["what"], row["peer"]] = int(row["count"].replace(",", ""))
    return found


def between_markers(table: str) -> str:
    """A page with this table."""
    return table.join([f"{MARKERS[0]}\n", f"\n{MARKERS[1]}"])


def changes(before: Counts, after: Counts, peer: str, least: float = LEAST) -> list[Change]:
    """The counts of the peer that changed by this share or more; of those in both tables."""
    both = [
        Change(what, before[what, of], count)
        for (what, of), count in after.items()
        if of == peer and (what, of) in before
    ]
    return [change for change in both if abs(change.share) >= least]


def _git(root: Path, *args: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *args], check=True, capture_output=True, text=True
    ).stdout


def tables(root: Path) -> Iterator[tuple[str, Counts]]:
    """The commits that changed the table, the first one first, with its counts."""
    last: Counts = {}
    for commit in _git(root, "log", "--reverse", "--format=%h", "--", PAGE).split():
        found = counts_in(_git(root, "show", f"{commit}:{PAGE}"))
        if found and found != last:
            yield commit, found
            last = found


def commits_between(root: Path, first: str, last: str) -> list[str]:
    """The commits after the first one that touched the package, the last one first."""
    log = _git(root, "log", "--no-merges", "--format=%h %s", f"{first}..{last}", "--", *CODE)
    return log.splitlines()


def report(root: Path, peer: str, last: int) -> Iterator[str]:
    known = [*tables(root)]
    pairs = [*itertools.pairwise(known)][-last:]
    for (before, old), (after, new) in pairs:
        changed = changes(old, new, peer)
        if not changed:
            continue
        yield f"{after}, since {before}"
        yield from (f"  {change}" for change in changed)
        yield from (f"    {commit}" for commit in commits_between(root, before, after))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--last", type=int, default=5, help="how many tables")
    parser.add_argument("--peer", default="torchlayers")
    options = parser.parse_args(arguments)
    for line in report(Path(__file__).parent.parent, options.peer, options.last):
        print(line)


if __name__ == "__main__":
    main()
