"""What is to be compiled, and how."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torchlayers.compiler.runtime.backends import Settings


class Asked(NamedTuple):
    """A function, and how it is to be compiled."""

    func: Callable[..., Any]
    name: str
    settings: Settings
    keeps_writes: bool  # False where they happened before: a forward that is computed again
    again: Callable[[Callable[..., Any], str], Callable[..., Any]]  # compiles a backward
