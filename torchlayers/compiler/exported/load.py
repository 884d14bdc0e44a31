"""torchlayers.load: reads what an exported function was saved to."""

import lzma
import os
import struct
import zipfile
import zlib

from torchlayers.compiler.exported import aot_package
from torchlayers.compiler.exported.exported_function import ExportedFunction
from torchlayers.compiler.exported.loaded_package import Package
from torchlayers.core.errors import TransformError


def load(path: str | os.PathLike[str]) -> ExportedFunction | Package:
    """Loads a function saved by :meth:`ExportedFunction.save` or :meth:`ExportedFunction.to_aot`.

    A package of ``to_aot`` is native code: loading one runs whatever is in it. Load only files you
    trust.

    Args:
        path: the file.
    Returns:
        An :class:`ExportedFunction`; for a file of ``to_aot``, a :class:`Package`. Both are called
        with arguments like those of the export.
    Raises:
        FileNotFoundError: there is no such file.
        TransformError: the file was not saved by torchlayers, is damaged, or was compiled for
            another torch version or processor.
    Example:
        >>> torchlayers.load("missing.pt2")
        Traceback (most recent call last):
        FileNotFoundError: torchlayers: load: there is no file 'missing.pt2'.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"torchlayers: load: there is no file {path!r}.")
    if any("/models/" in name for name in _check_whole(path)):
        return ExportedFunction.read_program(path)
    return aot_package.read_package(path)


def _check_whole(path: str) -> list[str]:
    """Returns the names of the file's members.

    Raises an error if it is damaged: running damaged code would crash the process.
    """
    try:
        with zipfile.ZipFile(path) as package:
            damaged, names = package.testzip(), package.namelist()
    except IsADirectoryError as error:
        raise TransformError(
            f"torchlayers: load: {path!r} is a directory. Pass the file that save wrote."
        ) from error
    except PermissionError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError, EOFError, OSError),
        *(NotImplementedError, RuntimeError, ValueError, OverflowError),
    ) as error:
        raise TransformError(
            f"torchlayers: load: {path!r} was not saved by torchlayers, or is damaged."
        ) from error
    if damaged is not None:
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: its member {damaged!r} fails its checksum. "
            "Copy it or save it again."
        )
    return names
