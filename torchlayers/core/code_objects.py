"""Functions that inspect code objects."""

import types
from collections.abc import Iterator


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields a code object, and those of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def names_in(code: types.CodeType) -> list[str]:
    """Returns names of globals and attributes used in the code and in functions defined in it."""
    return [*dict.fromkeys(name for nested in codes_in(code) for name in nested.co_names)]
