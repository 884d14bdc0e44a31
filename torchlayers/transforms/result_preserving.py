"""Transforms under which a function's results stay the same, for the checks of rules."""

from collections.abc import Callable
from typing import Any

# By name. Each is added by its own room, which may be a higher one (torchlayers/compiler).
RESULT_PRESERVING: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {}
