"""A copy of the project in build/mutants, in which mutants are made and compiled."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mutants"
_NOT_COPIED = (
    ".git",
    ".venv",
    ".torch-*",
    ".*_cache",
    "build",
    "dist",
    "__pycache__",
    "*.egg-info",
)


class Scratch:
    """The copy. It has a build of its own, so that a mutant compiles only the unit that it is in.

    What the unchanged units were compiled to is saved, and put back after a mutant, so that they
    are not compiled again.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self.tree = folder / "tree"
        self._clean = folder / "clean"

    def synchronize(self) -> None:
        """Makes the copy's files those of the project. Files that are alike keep their time, so
        that they are not compiled again."""
        names = {*_names_of_files(ROOT)}
        for name in names:
            _copy_if_different(ROOT / name, self.tree / name)
        for name in {*_names_of_files(self.tree)} - names:
            (self.tree / name).unlink()

    def build(self) -> None:
        """Compiles what has changed.

        Raises:
            RuntimeError: it does not compile. The message is the compiler's.
        """
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=self.tree, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"The copy in {self.tree} does not compile:\n{done.stdout}")

    def save_build(self) -> None:
        """Saves what the unchanged files were compiled to."""
        shutil.rmtree(self._clean, ignore_errors=True)
        for path in self._compiled():
            saved = self._clean / path.relative_to(self.tree)
            saved.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, saved)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Inside the block the copy has the mutant, compiled if it is in C++."""
        path = self.tree / mutant.file
        before, source = path.stat(), path.read_text("utf-8")
        path.write_text(mutant.applied_to(source), "utf-8")
        try:
            if mutant.is_compiled:
                self.build()
            yield
        finally:
            path.write_text(source, "utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            if mutant.is_compiled:
                self._put_build_back()

    def _put_build_back(self) -> None:
        for path in self._compiled():
            saved = self._clean / path.relative_to(self.tree)
            if path.stat().st_mtime_ns != saved.stat().st_mtime_ns:
                shutil.copy2(saved, path)

    def _compiled(self) -> list[Path]:
        objects = (self.tree / "build" / "temp").rglob("units/*.o")
        return [*objects, *(self.tree / "torchlayers").glob("_C*.so")]


def _names_of_files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _is_left_out(name)]
        for name in files:
            if not _is_left_out(name):
                yield str((Path(folder) / name).relative_to(root))


def _is_left_out(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _NOT_COPIED)


def _copy_if_different(source: Path, target: Path) -> None:
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    shutil.copymode(source, target)
