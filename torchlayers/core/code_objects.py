"""Code objects of Python functions."""

import types
from collections.abc import Iterator


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code object, and those of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def names_in(code: types.CodeType) -> list[str]:
    """Its globals and attributes, and those of the functions that are defined in it."""
    return [*dict.fromkeys(name for each in codes_in(code) for name in each.co_names)]
