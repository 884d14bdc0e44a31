"""Errors of passes: a pass that raises one is skipped, as calls do not depend on it."""

import contextlib
from collections.abc import Iterator

from torchlayers.core.errors import warn


class PassError(Exception):
    """Wraps an error that a pass raised, which is its cause.

    Attributes:
        name: the pass's name.
        is_needed: whether there is no simplified graph without it.
    """

    def __init__(self, name: str, error: Exception, is_needed: bool) -> None:
        lines = str(error).strip().splitlines()
        super().__init__(f"{name}: {type(error).__name__}: {lines[0] if lines else ''}")
        self.name, self.is_needed = name, is_needed

    def warn(self, instead: str) -> None:
        warn(
            "torchlayers: compile: a pass that simplifies captured graphs raised an error "
            f"({self}). {instead} Please report it to torchlayers, with the function and the "
            "shapes of its arguments.",
        )


@contextlib.contextmanager
def naming_pass(name: str, is_needed: bool = False) -> Iterator[None]:
    """Attributes an error inside to the pass of this name, unless a nested block already did."""
    try:
        yield
    except PassError:
        raise
    except Exception as error:
        raise PassError(name, error, is_needed) from error
