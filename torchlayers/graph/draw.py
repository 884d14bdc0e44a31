"""Draws a Gradient in Graphviz's language, or as an SVG picture without other programs."""

from html import escape

from torchlayers.graph.draw_boxes import BACKWARD, CAPTURED, FORWARD, Box, boxes_of
from torchlayers.graph.draw_layout import layers_of
from torchlayers.graph.forward_backward import ForwardBackward

# Blue, green and orange differ in lightness too, for colour-blind readers.
COLOURS = {FORWARD: "#cfe2f3", CAPTURED: "#6aa84f", BACKWARD: "#f9b96e"}
LEGEND = {FORWARD: "forward", CAPTURED: "captured for backward", BACKWARD: "backward"}

_LETTER, _HEIGHT, _GAP, _DROP, _MARGIN = 7.5, 26, 18, 34, 20  # in pixels


def to_dot(gradient: ForwardBackward) -> str:
    lines = [
        "digraph gradient {",
        '  node [shape=box, style="filled,rounded", fontname="sans-serif"];',
    ]
    for box in boxes_of(gradient):
        label = box.label.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  "{box.name}" [label="{label}", fillcolor="{COLOURS[box.role]}"];')
        lines += [f'  "{source}" -> "{box.name}";' for source in box.sources]
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(gradient: ForwardBackward) -> str:
    layers = layers_of(boxes_of(gradient))
    widths = [sum(map(_width, layer)) + _GAP * (len(layer) - 1) for layer in layers]
    legend = sum(_text_width(text) + _GAP for text in LEGEND.values())
    width = max([legend, *widths]) + 2 * _MARGIN
    height = 2 * _MARGIN + _DROP + len(layers) * (_HEIGHT + _DROP)
    centre: dict[str, tuple[float, float]] = {}
    for i, (layer, taken) in enumerate(zip(layers, widths, strict=True)):
        x, y = (width - taken) / 2, _MARGIN + _DROP + i * (_HEIGHT + _DROP) + _HEIGHT / 2
        for box in layer:
            centre[box.name] = (x + _width(box) / 2, y)
            x += _width(box) + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    boxes = [box for layer in layers for box in layer]
    for box in boxes:
        lines += [_line(centre[source], centre[box.name]) for source in box.sources]
    for box in boxes:
        lines.append(_drawn(box.label, box.role, centre[box.name], _width(box)))
    x = float(_MARGIN)
    for role, text in LEGEND.items():
        taken = _text_width(text)
        lines.append(_drawn(text, role, (x + taken / 2, _MARGIN + _HEIGHT / 2), taken))
        x += taken + _GAP
    return "\n".join([*lines, "</svg>"]) + "\n"


def _text_width(text: str) -> float:
    return len(text) * _LETTER + 16


def _width(box: Box) -> float:
    return _text_width(box.label)


def _drawn(text: str, role: str, centre: tuple[float, float], width: float) -> str:
    x, y = centre
    return (
        f'<rect x="{x - width / 2:g}" y="{y - _HEIGHT / 2:g}" width="{width:g}" '
        f'height="{_HEIGHT}" rx="5" fill="{COLOURS[role]}" stroke="#555"/>'
        f'<text x="{x:g}" y="{y + 4:g}" text-anchor="middle">{escape(text)}</text>'
    )


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = (start[0], start[1] + _HEIGHT / 2), (end[0], end[1] - _HEIGHT / 2)
    bend = (y2 - y1) / 2
    return (
        f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}" '
        'fill="none" stroke="#999"/>'
    )
