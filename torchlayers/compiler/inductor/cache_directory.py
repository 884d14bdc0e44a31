"""Checks Inductor's cache directory, and warns if it can't be used."""

import contextlib
import errno
import functools
import os
import tempfile

from torchlayers.core.errors import warn
from torchlayers.core.private_names import lookup

_FULL = (errno.ENOSPC, errno.EDQUOT)  # handled separately: there may be room later


class NoCacheError(Exception):
    """The reason why Inductor's cache directory can't be used."""


def directory() -> str:
    """The path of the directory, which may not exist yet."""
    return os.path.abspath(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _default())


def _default() -> str:
    folder: str = lookup("torch._inductor.runtime.cache_dir_utils.default_cache_dir")()
    return folder


def check_writable() -> None:
    """Raises NoCacheError if no file can be created in the directory."""
    try:
        where = directory()
        os.makedirs(where, exist_ok=True)
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise NoCacheError(error.strerror or str(error)) from error


def unusable_reason(error: BaseException | None) -> str | None:
    """Why the directory can't be used, if that caused the error, or None."""
    while error is not None:
        if isinstance(error, NoCacheError):
            return str(error)
        named = error.filename if isinstance(error, OSError) else None
        if isinstance(named, str) and error.errno not in _FULL:  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                if os.path.abspath(named).startswith(directory()):
                    return os.strerror(error.errno or 0)  # type: ignore[attr-defined]
        error = error.__cause__ or error.__context__
    return None


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk caused the error, in this process or in a compiler's."""
    while error is not None:
        if any(os.strerror(number) in str(error) for number in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe(why: str) -> str:
    """``inductor's cache directory '/nowhere' can't be used (…)``."""
    try:
        named = repr(directory())
    except OSError:  # there is no directory for temporary files
        named = "(TORCHINDUCTOR_CACHE_DIR)"
    return f"inductor's cache directory {named} can't be used ({why})"


def warn_unusable(why: str) -> None:
    _warn(describe(why))


@functools.cache
def _warn(what: str) -> None:
    warn(
        f"torchlayers: compile: {what}. Compiled functions replay their graphs instead "
        "(backend='replay'). Set TORCHINDUCTOR_CACHE_DIR to a directory that can be written to.",
    )
