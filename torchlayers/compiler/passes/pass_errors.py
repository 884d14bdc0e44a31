"""A pass that ends in an error is left out: the call that the recording is for does not need it."""

import contextlib
from collections.abc import Iterator

from torchlayers.core.errors import warn


class FailedError(Exception):
    """A pass's error, which is its cause.

    Attributes:
        name: the pass's.
        is_needed: whether there is no simplified graph without it.
    """

    def __init__(self, name: str, error: Exception, is_needed: bool) -> None:
        lines = str(error).strip().splitlines()
        super().__init__(f"{name}: {type(error).__name__}: {lines[0] if lines else ''}")
        self.name, self.is_needed = name, is_needed

    def say(self, instead: str) -> None:
        warn(
            f"torchlayers: compile: what simplifies recordings ended in an error ({self}). "
            f"{instead} Please report it to torchlayers, with the function and the shapes of its "
            "arguments.",
        )


@contextlib.contextmanager
def named(name: str, is_needed: bool = False) -> Iterator[None]:
    """An error inside is that of the pass of this name, or of one inside that has its own."""
    try:
        yield
    except FailedError:
        raise
    except Exception as error:
        raise FailedError(name, error, is_needed) from error
