"""Tables in HTML, as notebooks show reports."""

from collections.abc import Collection, Iterable, Sequence
from html import escape


def html_table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """A table whose first row is its header; columns in ``right`` are aligned to the right.

    Each cell has a style of its own, since notebooks align cells by theirs.
    """
    header, *body = [
        [(cell, "right" if place in right else "left") for place, cell in enumerate(row)]
        for row in rows
    ]
    lines = [_row("th", header), *(_row("td", row) for row in body)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    inner = "".join(
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for cell, side in cells
    )
    return f"<tr>{inner}</tr>"


def html_lines(lines: Iterable[str]) -> str:
    """Paragraphs, one for each line."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def html_frame(page: str, height: int) -> str:
    """A page of its own inside the notebook, of this height in pixels."""
    return (
        f'<iframe srcdoc="{escape(page)}" width="100%" height="{height}" '
        'style="border: none"></iframe>'
    )
