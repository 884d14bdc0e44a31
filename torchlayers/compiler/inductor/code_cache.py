"""Keeps the programs of compiled graphs on disk, in Inductor's cache directory."""

import contextlib
import os
import pickle
import tempfile

from torchlayers._C import Program
from torchlayers.compiler.inductor.program_description import ProgramDescription
from torchlayers.compiler.inductor.wrapper_program import build


def _path(folder: str, key: str) -> str:
    return os.path.join(folder, "torchlayers", "programs", key[:2], key)


def load(folder: str, key: str) -> Program | None:
    """Returns the program, or None if there is none, or if files that it needs are gone."""
    try:
        description = read_description(_path(folder, key))
    except Exception:  # a damaged pickle can raise anything
        return None
    return build(description)


def read_description(path: str) -> ProgramDescription:
    with open(path, "rb") as file:
        return pickle.load(file)  # type: ignore[no-any-return]


def store(folder: str, key: str, program: ProgramDescription) -> None:
    """Writes the program, if it can be written; readers see the whole file or none."""
    path = _path(folder, key)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as file:
            try:
                file.write(pickle.dumps(program))
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
