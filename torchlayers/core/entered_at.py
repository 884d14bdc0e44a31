"""Finds the lines of the user's code at which the layers of the stack were entered.

A call of a transform notes nothing, so that it costs nothing: the lines are read off the Python
frames when they are asked for. A frame of ours or of torch.func that is entering a layer is
recognized by the name of the function that enters it. Of a layer that a ``with`` block enters, no
frame is left: Layer.__enter__ notes the line.
"""

import linecache
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from torchlayers.core.errors import is_user_file, quoted_line

# The functions that run the whole of a transform in C++, with the kind of the layer that they
# enter, and the context managers (torch.func's too) that enter one.
_CALLS = {
    "call_grad": "grad",
    "call_jvp": "jvp",
    "call_vjp": "grad",
    "call_vmap": "vmap",
    "call_vmap_of_leaves": "vmap",
}
_CUSTOM = "a layer written in Python"
_BLOCKS = {
    "_func_increment_nesting": "functionalize",
    "_new_entry": _CUSTOM,
    "drawn_outside_entry": "drawn outside",
    "functionalize_entry": "functionalize",
    "grad_increment_nesting": "grad",
    "jvp_increment_nesting": "jvp",
    "seeded_entry": "seeded",
    "vmap_again_entry": "vmap",
    "vmap_entry": "vmap",
    "vmap_increment_nesting": "vmap",
}
_BUILT_IN = {*_CALLS.values(), *_BLOCKS.values()} - {_CUSTOM}


def noted_frame(frame: FrameType | None) -> tuple[str, int] | None:
    """The file and the line of the user's code that a frame is in, or was called from."""
    while frame is not None:
        if is_user_file(filename := frame.f_code.co_filename):
            return filename, frame.f_lineno
        frame = frame.f_back
    return None


def lines_of(kinds: Sequence[str]) -> list[str]:
    """Returns the line that entered each layer: ``file.py:7, `source line```, or "" if unknown.

    Args:
        kinds: of the layers on this thread's stack, outermost first, without those whose lines
            are noted.

    A layer that was entered on another thread is unknown.
    """
    entering = [(kind, frame) for frame in _frames() if (kind := _find_kind(frame)) is not None]
    lines = []
    for kind in kinds:
        kind = kind if kind in _BUILT_IN else _CUSTOM
        place = next((i for i, (entered, _) in enumerate(entering) if entered == kind), None)
        lines.append("" if place is None else _user_line(entering[place][1]))
        del entering[: 0 if place is None else place + 1]
    return lines


def _frames() -> Iterator[FrameType]:
    """The frames of this thread, outermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return reversed(frames)


def is_entering(frame: FrameType) -> bool:
    """Whether a transform's own frame has called C++, with no other function in between."""
    return _find_kind(frame) is not None


def _find_kind(frame: FrameType) -> str | None:
    """The kind of the layer that a frame is entering, or has entered in a ``with`` block."""
    code = frame.f_code
    if is_user_file(code.co_filename):
        return None
    for name in code.co_names:
        if name in _BLOCKS:
            return _BLOCKS[name]
    called = [name for name in code.co_names if name in _CALLS]
    if not called:
        return None
    line = linecache.getline(code.co_filename, frame.f_lineno)
    return next((_CALLS[name] for name in called if f"{name}(" in line or not line), None)


def _user_line(frame: FrameType) -> str:
    place = noted_frame(frame)
    return "" if place is None else quoted_line(*place)
