"""A request to compile a function, and its settings."""

from collections.abc import Callable
from typing import Any, NamedTuple


class CompileSettings(NamedTuple):
    """The settings passed to compile."""

    backend: str
    options: dict[str, Any] | None
    check: bool
    guards: bool = True
    replayed: str = ""  # why the graph is replayed rather than compiled, if it is


class CompileRequest(NamedTuple):
    """A function to compile, with its settings."""

    func: Callable[..., Any]
    name: str
    settings: CompileSettings
    keeps_writes: bool  # False for a recomputed forward, whose side effects have already happened
    compile_backward: Callable[[Callable[..., Any], str], Callable[..., Any]]  # compiles a backward
