"""Finds the line of the user's code for errors and warnings."""

import contextlib
import copy
import linecache
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch

from torchlayers.core.logger import logger

_LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,
    str(Path(__file__).parents[2]) + os.sep,  # the package
    contextlib.__file__,  # for decorators and with blocks
    copy.__file__,
)


def location(frame: types.FrameType | None = None) -> str:
    """Returns `` In file.py:7, `source line`.`` for the innermost frame in the user's code.

    Frames are searched from the given one outwards; by default, from this one.
    """
    frame = frame or sys._getframe()
    while frame is not None:
        if _is_user_frame(frame):
            return _quoted(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def caller_of(*functions: Any) -> types.FrameType | None:
    """The frame that called the innermost running call of the functions; None if none runs."""
    frame: types.FrameType | None = sys._getframe()
    codes = [function.__code__ for function in functions]
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame.f_back if frame is not None else None


def warn(message: str) -> None:
    """Warns, with the innermost line of the user's code as the location; once there, by default.

    The logger has the message each time.
    """
    logger.info(message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and not _is_user_frame(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def line_of_node(metadata: dict[str, Any]) -> str:
    """Returns ``file.py:7, `source line```: the user's line that created an autograd node, or "".

    Args:
        metadata: the node's anomaly-mode metadata. For a node that a backward pass created, and
            not a line of the user's, the node that the pass ran is used instead.
    """
    entries = metadata.get("traceback_", [])
    parent = metadata.get("parent_")
    if parent is not None and not (entries and _is_user_entry(entries[-1])):
        return line_of_node(parent.metadata)
    for entry in reversed(entries):
        if _is_user_entry(entry):
            place, _, line = entry.strip().partition("\n")
            number = place.partition(", line ")[2].partition(",")[0]
            filename = os.path.basename(place.split('"')[1])
            return f"{filename}:{number}" + (f", `{line.splitlines()[0].strip()}`" if line else "")
    return ""


def _is_user_entry(entry: str) -> bool:
    """Whether an entry of a formatted traceback is in the user's code."""
    return is_user_file(entry.split('"')[1])


def location_of(error: BaseException) -> str:
    place = ""
    trace = error.__traceback__
    while trace is not None:
        if _is_user_frame(trace.tb_frame):
            place = _quoted(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return place


def _is_user_frame(frame: types.FrameType) -> bool:
    return is_user_file(frame.f_code.co_filename)


def is_user_file(filename: str) -> bool:
    """Whether the file is the user's: not torch's, ours, or a standard-library file in between."""
    return not filename.startswith((*_LIBRARIES, "<frozen"))


def _quoted(frame: types.FrameType, number: int) -> str:
    return f" In {quoted_line(frame.f_code.co_filename, number)}."


def quoted_line(filename: str, number: int) -> str:
    """Returns ``file.py:7, `source line```, without the source if it can't be read."""
    line = linecache.getline(filename, number).strip()
    quoted = f", `{line}`" if line else ""
    return f"{os.path.basename(filename)}:{number}{quoted}"
