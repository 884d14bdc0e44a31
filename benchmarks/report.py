"""Tables of figures on a page of docs/, and plots of how they grow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine

DOCS = Path(__file__).parent.parent / "docs"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; numbers, which are all but an unnamed first column, to the right."""
    rules = ["---" if not column else "--:" for column in columns]
    cells = [[f" {cell} " if cell else " " for cell in row] for row in (columns, *rows)]
    head, *body = ["|" + "|".join(row) + "|" for row in cells]
    return "\n".join([head, "|" + "|".join(rules) + "|", *body])


def publish(text: str, page: str, mark: str) -> None:
    """Prints the text and puts it on the page, between the marks of that name.

    What it was measured on is said below it.
    """
    text = f"{text}\n\n({machine.describe()})"
    print(text)
    path = DOCS / page
    old = path.read_text()
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    head, tail = old[: old.index(begin) + len(begin)], old[old.index(end) :]
    path.write_text(f"{head}\n\n{text}\n\n{tail}")


def draw_growth(picture: Path, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """The seconds to differentiate a graph by the number of its nodes, a curve for each name."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for (name, points), marker in zip(curves.items(), "os^v", strict=False):
        axes.plot(*zip(*points, strict=True), f"{marker}-", label=name)
    axes.set(xlabel="nodes of the graph", ylabel="seconds to differentiate it")
    axes.set(xlim=0, ylim=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})
