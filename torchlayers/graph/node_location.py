"""Describes a node of an FX graph and its source location, for error messages."""

import os
import re
from typing import Any

import torch
from torch.fx import Node

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+)[^\n]*(?:\n\s*(.+))?')


def locate(node: Node) -> str:
    """Returns, for example, ``node `sin` (aten.sin.default), in model.py:7, `y = x.sin()` ``."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return f"node `{node.name}` ({target_name(node.target)}), which has no recorded source line"
    # The innermost line that is neither torch's own nor generated.
    user_frames = [frame for frame in frames if not frame[0].startswith((_TORCH, "<"))]
    path, line, code = (user_frames or frames)[-1]
    file = re.split(r"[/\\]", path)[-1]
    quoted = f", `{code.strip()}`" if code.strip() else ""
    return f"node `{node.name}` ({target_name(node.target)}), in {file}:{line}{quoted}"


def target_name(target: Any) -> str:
    if isinstance(target, str) or not callable(target):
        return str(target)
    name = getattr(target, "__name__", None)
    return str(target) if "." in str(target) and " " not in str(target) else str(name or target)
