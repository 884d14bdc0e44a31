"""Shared by the benchmarks that fill a page of docs/: arguments, progress, tables, markers."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import device

DOCS = Path(__file__).parent.parent / "docs"
IMAGES = DOCS / "images"


def run(description: str, measure: Callable[[bool], dict[str, str]], name: str) -> None:
    """The command: prints the measurements and, without ``--quick``, writes them to their pages.

    With ``--device cuda`` it writes only to the GPU section of the page of all benchmarks.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a rough table, printed only")
    device.add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with device.use(options.device):
        pages = measure(options.quick)
    for page, text in pages.items():
        print(text)
        if options.quick:
            continue
        if options.device == "cpu":
            write(page, name, text)
        elif page == "benchmarks.md":  # the other pages are about the CPU
            write(page, f"{name}, {options.device}", text)


def write(page: str, name: str, text: str) -> None:
    """Writes the text between the markers of that name."""
    path = DOCS / page
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"{page} lacks the markers {begin} and {end}.")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with the first column left-aligned and the others right-aligned."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[], Any]]:
    """A progress bar, or dots without tqdm; call the yielded function to advance it."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda: print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return
    with tqdm(total=total) as bar:
        yield bar.update
