"""Places the boxes of a drawing in layers, with each box below those whose values it takes."""

from collections.abc import Sequence

from torchlayers.graph.draw_boxes import Box

_SWEEPS = 8


def layers_of(boxes: Sequence[Box]) -> list[list[Box]]:
    """Returns the layers from top to bottom, and the boxes in each from left to right.

    A box is one layer below the lowest of its sources. Within layers, boxes move towards the
    middle of their neighbours, in downward and upward sweeps by turns, so that few lines cross.
    """
    depth: dict[str, int] = {}
    for box in boxes:  # sources come first
        depth[box.name] = 1 + max((depth[source] for source in box.sources), default=-1)
    layers: list[list[Box]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for box in boxes:
        layers[depth[box.name]].append(box)
    joined: dict[str, list[str]] = {box.name: list(box.sources) for box in boxes}
    for box in boxes:
        for source in box.sources:
            joined[source].append(box.name)
    place: dict[str, float] = {}
    for layer in layers:
        _number(layer, place)
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wish = {box.name: _middle(joined[box.name], place, place[box.name]) for box in layer}
            layer.sort(key=lambda box: wish[box.name])
            _number(layer, place)
    return layers


def _number(layer: Sequence[Box], place: dict[str, float]) -> None:
    """Assigns places from -1 to 1, so that layers of different lengths are comparable."""
    for i, box in enumerate(layer):
        place[box.name] = (2 * i + 1) / len(layer) - 1


def _middle(names: Sequence[str], place: dict[str, float], otherwise: float) -> float:
    return sum(place[name] for name in names) / len(names) if names else otherwise
