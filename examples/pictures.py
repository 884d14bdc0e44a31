"""Shared by the worked examples: draws a picture if `--picture PATH` asks for one."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def draw_if_asked(title: str, draw: Callable[[Any], None]) -> None:
    """Calls draw(figure) with a matplotlib figure, and saves it. Equal data gives equal files."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--picture", type=Path, help="where to draw a picture, as svg or png")
    path = parser.parse_args().picture
    if path is None:
        return
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = path.name
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    draw(figure)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    print(f"wrote {path}")
