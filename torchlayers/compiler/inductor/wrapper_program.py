"""Translates Inductor's Python wrapper to a C++ program that calls the kernels.

For the CPU, Inductor writes kernels in C++ and a Python function, the wrapper, that allocates
memory and calls the kernels one after the other. At small sizes the wrapper takes longer than the
kernels. It consists of a few kinds of statements, which are parsed here and become the steps of a
C++ program. If it has another kind, as for other devices, the wrapper is used as it is. Wrappers
read symbolic sizes from the inputs, and so does the program.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from torchlayers._C import Program
from torchlayers.compiler.inductor.program_description import ProgramDescription
from torchlayers.compiler.inductor.wrapper_reader import (
    Layout,
    UnsupportedCodeError,
    WrapperReader,
)
from torchlayers.core.device import CPU
from torchlayers.core.torch_private import OpOverload

# What building a program raises for a step that it does not support.
_REFUSALS = (UnsupportedCodeError, AttributeError, OSError, KeyError, TypeError, ValueError)


def program_of(code: Any, inputs: Sequence[Layout] = ()) -> Program | None:
    """Translates code compiled by Inductor to a program, or returns None if it is not supported."""
    return build(describe(code, inputs=inputs))


def build(description: ProgramDescription | None) -> Program | None:
    """Makes the program, or returns None if there is none or a step of it is not supported."""
    try:
        return None if description is None else description.build()
    except _REFUSALS:
        return None


def describe(
    code: Any,
    bodies: Mapping[str, ProgramDescription | None] | None = None,
    apart: Mapping[int, OpOverload] | None = None,
    inputs: Sequence[Layout] = (),
) -> ProgramDescription | None:
    """Translates code compiled by Inductor to the steps of a program; None if that is unsupported.

    Args:
        code: a CompiledFxGraph.
        bodies: the bodies of its scans, by name.
        apart: by index, operators that make results separate tensors: Inductor may return one
            tensor for several results.
        inputs: the layouts of the inputs, for symbolic sizes.
    """
    try:
        if code.inputs_to_check or set(code.device_types) != {CPU.type}:
            return None
        function = code.current_callable.__func__
        module = _parsed(function.__code__.co_filename)
        return WrapperReader(module, function, bodies or {}, inputs).program(apart or {})
    except _REFUSALS:
        return None


def _parsed(path: str) -> ast.Module:
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read())
