"""A request to compile a function, and its settings."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol


class CompileSettings(NamedTuple):
    """The settings passed to compile.

    ``wait`` is None if compile decides at the first call with a signature.
    """

    backend: str
    options: dict[str, Any] | None
    check: bool
    guards: bool = True
    wait: bool | None = None
    fullgraph: bool = False  # whether reads of tensor values are refused
    replayed: str = ""  # why the graph is replayed rather than compiled, if it is


class CompileRequest(NamedTuple):
    """A function to compile, with its settings."""

    func: Callable[..., Any]
    name: str
    settings: CompileSettings
    keeps_writes: bool  # False for a recomputed forward, whose side effects have already happened
    compile_backward: Callable[[Callable[..., Any], str], "CompiledBackward"]  # compiles a backward
    replaced: set[tuple[int, Any]]  # places of Python's state that captures so far write to
    lock: AbstractContextManager[Any]  # held by the one thread that captures the function


class CompiledBackward(Protocol):
    """A compiled function whose compilations in flight can be waited for."""

    def __call__(self, *args: Any) -> Any: ...
    def _wait_until(self, deadline: float | None) -> bool: ...
