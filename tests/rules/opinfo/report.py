"""``python -m tests.rules.opinfo.report``: writes the full sweep to the table in docs/op_db.md.

It takes about ten minutes per dtype on one core. Name dtypes to sweep only those; the counts of the
others are kept.
"""

import collections
import re
import sys
from pathlib import Path

import torch

from tests.rules.opinfo.cases import cases, full_name, ops
from tests.rules.opinfo.compare import (
    AGREES,
    BOTH_RAISE,
    DIFFERS,
    ONLY_OURS_WORKS,
    ONLY_THEIRS_WORKS,
    compare,
)
from tests.rules.opinfo.transforms import ALL

PAGE = Path(__file__).parents[3] / "docs" / "op_db.md"
DTYPES = ("float32", "float64", "complex64", "complex128", "bfloat16")
OUTCOMES = (AGREES, BOTH_RAISE, ONLY_OURS_WORKS, ONLY_THEIRS_WORKS, DIFFERS)
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"


def sweep(dtype: str) -> dict[str, collections.Counter[str]]:
    """The number of samples with each outcome, by transform."""
    counts = {name: collections.Counter[str]() for name in ALL}
    for op in ops(getattr(torch, dtype)):
        for name, run in ALL.items():
            for i, case in enumerate(cases(op, getattr(torch, dtype), None)):
                outcome, why = compare(run, case)
                counts[name][outcome] += 1
                if outcome not in (AGREES, BOTH_RAISE):
                    print(f"{dtype} {full_name(op)} {i}, {name}, {outcome}: {why}", flush=True)
    return counts


def table(dtype: str, counts: dict[str, collections.Counter[str]]) -> str:
    lines = [
        f"### {dtype}",
        "",
        "| transform | " + " | ".join(OUTCOMES) + " |",
        "|---|" + "--:|" * len(OUTCOMES),
    ]
    lines += [
        f"| {name} | " + " | ".join(str(counts[name][outcome]) for outcome in OUTCOMES) + " |"
        for name in ALL
    ]
    return "\n".join(lines) + "\n"


def write(tables: dict[str, str]) -> None:
    """Writes the tables to the page, next to existing ones of other dtypes."""
    page = PAGE.read_text()
    inside = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    found = dict(re.findall(r"(?ms)^(### (\w+)\n.*?\n\n)(?=###|\Z)", inside.strip() + "\n\n"))
    kept = {dtype: text.rstrip() + "\n" for text, dtype in found.items()}
    kept.update(tables)
    body = "\n".join(kept[dtype] for dtype in DTYPES if dtype in kept)
    PAGE.write_text(
        page[: page.index(BEGIN) + len(BEGIN)] + f"\n\n{body}\n" + page[page.index(END) :]
    )


def main() -> None:
    torch.set_num_threads(1)
    for dtype in sys.argv[1:] or DTYPES:
        write({dtype: table(dtype, sweep(dtype))})


if __name__ == "__main__":
    main()
