"""``python docs/site/stack_picture.py``: draws docs/images/stack.svg and stack-dark.svg.

One operator on its way down the stack of `vmap(grad(f))`, and what its tensors are at each layer.
The calls are those of the trace on docs/index.md.
"""

from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parents[1] / "images"
WIDTH, HEIGHT = 900, 452


class Colours(NamedTuple):
    text: str
    faint: str
    line: str
    code: str
    layers: tuple[str, str, str, str]  # the program, grad, vmap, the kernel
    on_layer: str


LIGHT = Colours(
    "#1f2430",
    "#5b6270",
    "#9aa1ad",
    "#f3f4f7",
    ("#e4e7ee", "#d7e8d2", "#d5e0f7", "#f5ddd0"),
    "#1f2430",
)
DARK = Colours(
    "#e6e9f0",
    "#a7aebb",
    "#737b89",
    "#262b36",
    ("#343b49", "#2f5134", "#2f4775", "#6d4330"),
    "#f2f4f8",
)


class Row(NamedTuple):
    title: str
    does: tuple[str, ...]
    call: str
    tensor: str


ROWS = (
    Row("your function", ("is written for one number",), "torch.sin(x)", "x is f32[]"),
    Row(
        "grad, level 2",
        ("notes sin for the backward pass,", "whose cos and mul go the same way"),
        "sin, then cos and mul",
        "f32[], recorded",
    ),
    Row(
        "vmap, level 1",
        ("shows one sample to those above,", "hands all eight to those below"),
        "sin, cos, mul",
        "f32[]@0, one of eight",
    ),
    Row("PyTorch's kernels", ("compute, as without transforms",), "sin, cos, mul", "f32[8], plain"),
)
TOP, STEP, TALL = 88, 92, 64
LEFT, ACROSS = 232, 380


def picture(colours: Colours) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="An operator goes down the stack of vmap(grad(sin)), layer by layer">',
        f'<g font-family="system-ui, Segoe UI, Roboto, sans-serif" font-size="15" '
        f'fill="{colours.text}">',
        code(24, 28, "tl.vmap(tl.grad(torch.sin))(x)", colours.text, 17),
        words(
            24,
            54,
            "each transform is a layer; every operator goes down, one layer at a time",
            colours,
        ),
    ]
    for i, (row, fill) in enumerate(zip(ROWS, colours.layers, strict=True)):
        y = TOP + i * STEP
        middle = y + TALL / 2
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{ACROSS}" height="{TALL}" rx="10" fill="{fill}"/>'
        )
        lines = len(row.does)
        for j, line in enumerate(row.does):
            parts.append(
                f'<text x="{LEFT + 20}" y="{middle + 5 + 20 * (j - (lines - 1) / 2):g}" '
                f'fill="{colours.on_layer}">{line}</text>'
            )
        parts.append(
            f'<text x="{LEFT - 20}" y="{middle + 5:g}" text-anchor="end" '
            f'font-weight="600">{row.title}</text>'
        )
        parts.append(code(LEFT + ACROSS + 24, middle - 5, row.call, colours.text, 15))
        parts.append(words(LEFT + ACROSS + 24, middle + 17, row.tensor, colours))
        if i:
            parts += arrow(LEFT + ACROSS / 2, y - STEP + TALL, y, colours.line)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def code(x: float, y: float, text: str, fill: str, size: int) -> str:
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
    place = f'x="{x:g}" y="{y:g}" font-size="{size}"'
    return f'<text {place} font-family="{font}" fill="{fill}">{text}</text>'


def words(x: float, y: float, text: str, colours: Colours) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colours.faint}">{text}</text>'


def arrow(x: float, begin: float, end: float, colour: str) -> list[str]:
    back = end - 11
    return [
        f'<path d="M{x:g} {begin + 3:g}V{back + 2:g}" stroke="{colour}" stroke-width="2"/>',
        f'<path d="M{x - 6:g} {back:g}L{x:g} {end - 2:g}L{x + 6:g} {back:g}Z" fill="{colour}"/>',
    ]


PICTURES = {"stack.svg": LIGHT, "stack-dark.svg": DARK}

if __name__ == "__main__":
    for name, colours in PICTURES.items():
        (IMAGES / name).write_text(picture(colours), encoding="utf-8")
