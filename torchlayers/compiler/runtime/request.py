"""The request to compile a function."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torchlayers.compiler.runtime.backends import CompileSettings


class CompileRequest(NamedTuple):
    """A function to compile, with its settings."""

    func: Callable[..., Any]
    name: str
    settings: CompileSettings
    keeps_writes: bool  # False for a recomputed forward, whose side effects have already happened
    compile_backward: Callable[[Callable[..., Any], str], Callable[..., Any]]  # compiles a backward
