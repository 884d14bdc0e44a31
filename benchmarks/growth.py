"""Plots how a cost grows."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

MARKERS = "os^vDP"

Points = Sequence[tuple[int, float]]


def draw(
    picture: Path,
    curves: Mapping[str, Points],
    across: str,
    up: str,
    muted: Collection[str] = (),
    logarithmic: bool = False,
) -> None:
    """Draws a curve for each name; muted ones are dashed and grey.

    The first muted curve has the marker of the first that is not muted, and so on.
    The same curves give the same file: it contains neither a date nor random names.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = picture.name
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    markers = {True: iter(MARKERS), False: iter(MARKERS)}
    for name, points in curves.items():
        look = {"color": "0.6", "linestyle": "--"} if name in muted else {"linestyle": "-"}
        marker = next(markers[name in muted])
        axes.plot(*zip(*points, strict=True), marker=marker, label=name, **look)
    axes.set(xlabel=across, ylabel=up)
    if logarithmic:
        axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    else:
        axes.set(xlim=0, ylim=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})
    pyplot.close(figure)
