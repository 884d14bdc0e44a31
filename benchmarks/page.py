"""What the benchmarks that fill a page of docs/ share: arguments, progress, tables, markers."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).parent.parent / "docs"


def run(description: str, measure: Callable[[bool], dict[str, str]], name: str) -> None:
    """The command: prints what is measured and, without ``--quick``, puts it on its pages."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a rough table, printed only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    for page, text in measure(quick).items():
        print(text)
        if not quick:
            write(page, name, text)


def write(page: str, name: str, text: str) -> None:
    """Puts the text between the markers of that name."""
    path = DOCS / page
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"{page} lacks the markers {begin} and {end}.")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, with the first column to the left and the others to the right."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[], Any]]:
    """A bar, or dots where tqdm is not installed; calling what it yields advances it."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda: print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return
    with tqdm(total=total) as bar:
        yield bar.update
