"""How the time to differentiate a graph grows with the graph, as a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def draw(picture: Path, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Seconds by the number of nodes, a curve for each name."""
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
