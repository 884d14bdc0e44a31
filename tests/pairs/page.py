"""``python -m tests.pairs.page`` writes the page of what works where."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

from tests.pairs.nests import NESTS
from tests.pairs.refused import of
from tests.pairs.rows import FEATURES

PAGE = Path(__file__).parents[2] / "docs" / "what-works-where.md"

BEGINNING = """\
# What works where

Each feature below is tried in each nest below, in float64, beside the same mathematics in plain
torch. All {pairs:,} pairs give the same numbers, but for the {others} in the table at the end.
A new feature or transform adds a row or a column (`tests/pairs`). `make test` tries one pair in
fourteen, others each day, and `make test-full` all.
"""


def text() -> str:
    others = [(f, n, found) for f in FEATURES for n in NESTS if (found := of(f, n))]
    lines = [BEGINNING.format(pairs=len(FEATURES) * len(NESTS), others=len(others))]
    lines += ["## Features", "", _listed(FEATURES), "", "## Nests", "", _listed(NESTS), ""]
    lines += ["## What is refused, and why", "", "| feature | in | why |", "|---|---|---|"]
    for feature in FEATURES:
        by_reason: dict[str, list[str]] = {}
        for name, nest, found in others:
            if name == feature:
                by_reason.setdefault(found.why, []).append(nest)
        for why, nests in by_reason.items():
            lines.append(f"| {feature} | {', '.join(nests)} | {why} |")
    return "\n".join(lines) + "\n"


def _listed(names: Iterable[str]) -> str:
    listed = "; ".join(f"`{name}`" if name.isidentifier() else name for name in names)
    return textwrap.fill(f"{listed}.", 100)


if __name__ == "__main__":
    PAGE.write_text(text())
