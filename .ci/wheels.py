"""Builds a wheel for each Python and torch that this machine has or can get, and tries each.

    make wheels                 torch without CUDA, from pip's index and wheels on this machine
    make wheels LIMIT=8         torch with CUDA too: up to 8 GB to download for one wheel
    python .ci/wheels.py --pythons 3.11 3.12 --torches 2.13

A wheel runs with the Python and the minor version of torch that it was built with: its version
says so (0.2.0+torch2.13), and pip installs it beside no other torch. It is tried in a fresh
environment: the import, and one gradient. What can't be built is in the table with the reason.

pip finds CPU builds of torch where the index that it is configured with has them, as PyTorch's own;
PIP_EXTRA_INDEX_URL adds an index.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheels"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11", "2.12", "2.13", "2.14", "2.15")
TOOLS = ("setuptools>=77", "wheel", "ninja")
# What pip downloads for a torch, in gigabytes: one with CUDA brings NVIDIA's libraries.
WITHOUT_CUDA, WITH_CUDA = 0.3, 4.0
HERE = "{}.{}".format(*sys.version_info)
TRIAL = """
import torch, torchlayers
slope = torchlayers.grad(torch.sin)(torch.zeros(()))
assert slope == 1, slope
print(torch.__version__)
"""


class Failed(Exception):
    """A step did not work; the text is for the table."""


@dataclass(frozen=True)
class Row:
    """What came of one Python and one torch."""

    python: str
    torch: str
    wheel: str = "-"
    size: str = "-"
    built: str = "-"
    result: str = ""


def main() -> None:
    options = parse()
    for folder in (WORK, options.output):
        folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for python in options.pythons:
        interpreter = find_python(python)
        if interpreter is None:
            rows.append(Row(python, "any", result=f"not built: no python{python} here"))
            continue
        try:
            known = versions_for(python, interpreter)
        except Failed as reason:
            rows.append(Row(python, "any", result=str(reason)))
            continue
        for minor in options.torches:
            row = wheel_row(python, interpreter, minor, known, options)
            print(f"Python {row.python}, torch {row.torch}: {row.result}", flush=True)
            rows.append(row)
    text = table(rows)
    (options.output / "wheels.md").write_text(f"{text}\n")
    print(f"\n{text}")
    if any(row.result.startswith("failed") for row in rows):
        sys.exit(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Builds and tries wheels.")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, choices=PYTHONS, metavar="3.X")
    parser.add_argument("--torches", nargs="+", default=TORCHES, choices=TORCHES, metavar="2.X")
    parser.add_argument(
        "--limit", type=float, default=1.0, help="gigabytes to download at most for one wheel"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the wheels go")
    return parser.parse_args()


def find_python(version: str) -> str | None:
    """The interpreter of a version: this one, one on the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    of_pyenv = sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    on_path = shutil.which(f"python{version}")
    candidates = [sys.executable] if version == HERE else [on_path, *map(str, of_pyenv)]
    return next((each for each in candidates if each and is_python(each, version)), None)


def is_python(path: str, version: str) -> bool:
    """Whether it runs, and has this version: pyenv has stubs on the PATH for any."""
    program = "import sys; print('{}.{}'.format(*sys.version_info))"
    done = subprocess.run([path, "-c", program], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version


def versions_for(python: str, interpreter: str) -> list[str]:
    """The versions of torch that pip can get for an interpreter, newest first."""
    environment = Environment(WORK / f"python{python}", interpreter)
    listed = environment.pip("index", "versions", "torch")
    return listed_versions(listed)


def listed_versions(text: str) -> list[str]:
    found = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    return [version.strip() for version in found[1].split(",")] if found else []


def chosen(minor: str, known: Iterable[str], limit: float) -> str:
    """The version of torch to build against; raises Failed with the reason if there is none."""
    of_minor = [version for version in known if version.startswith(f"{minor}.")]
    if not of_minor:
        raise Failed("not built: pip finds no such torch for this Python")
    without_cuda = [version for version in of_minor if version.endswith("+cpu")]
    if without_cuda and limit >= WITHOUT_CUDA:
        return without_cuda[0]
    least = WITHOUT_CUDA if without_cuda else WITH_CUDA
    if limit < least:
        what = "" if without_cuda else " with CUDA's libraries: pip finds no CPU build"
        raise Failed(f"not built: about {least:g} GB to download{what} (LIMIT={limit:g})")
    return of_minor[0]


def wheel_row(
    python: str, interpreter: str, minor: str, known: list[str], options: argparse.Namespace
) -> Row:
    row = Row(python, minor)
    try:
        version = chosen(minor, known, options.limit)
        row = replace(row, torch=version)
        started = time.monotonic()
        wheel = build(python, interpreter, version, options.output)
        minutes, seconds = divmod(round(time.monotonic() - started), 60)
        row = replace(
            row,
            wheel=wheel.name,
            size=f"{wheel.stat().st_size / 1e6:.1f} MB",
            built=f"{minutes}:{seconds:02d}",
        )
        return replace(row, result=try_in_fresh_environment(wheel, interpreter, version))
    except Failed as reason:
        return replace(row, result=str(reason))


class Environment:
    """A virtual environment in a folder, which is made if it is not there."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.python = folder / "bin" / "python"
        if not self.python.exists():
            command = [interpreter, "-m", "venv", str(folder)]
            run(command, "the environment could not be made")

    def pip(self, *arguments: str) -> str:
        return run([str(self.python), "-m", "pip", *arguments], f"pip {arguments[0]} failed")


def run(command: list[str], problem: str, **settings: str) -> str:
    """Runs a command; raises Failed, with the last line of its errors, if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    WORK.parent.mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=WORK.parent, env=environment | settings, capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["?"]
        errors = [line for line in lines if "error" in line.lower()]
        raise Failed(f"failed: {problem}: {(errors or lines)[-1].strip()}")
    return done.stdout


def build(python: str, interpreter: str, version: str, output: Path) -> Path:
    """Builds the wheel for a torch, and returns its path in the output folder."""
    with tempfile.TemporaryDirectory(dir=WORK) as new:
        if python == HERE and version == torch.__version__:
            made = built_by(sys.executable, ROOT, Path(new))  # `make` has compiled most of it
        else:
            folder = WORK / f"python{python}-torch{version}"
            environment = Environment(folder / "environment", interpreter)
            environment.pip("install", "--quiet", f"torch=={version}", *TOOLS)
            copy_sources(folder / "source")
            made = built_by(str(environment.python), folder / "source", Path(new))
        return pinned(made, version, output)


def built_by(python: str, source: Path, folder: Path) -> Path:
    """The wheel of these sources, for a Python and its torch, in a new folder."""
    shutil.rmtree(source / "build" / "lib", ignore_errors=True)
    for stale in source.glob("build/lib.*"):
        shutil.rmtree(stale)  # files of an older wheel
    options = ("--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder))
    tools = {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}  # ninja
    command = [python, "-m", "pip", "wheel", *options, str(source)]
    run(command, "the extension could not be compiled", **tools)
    (made,) = folder.glob("*.whl")
    return made


def copy_sources(to: Path) -> None:
    """Copies what a wheel is made of. Files keep their times: what is compiled is not stale."""
    for name in ("csrc", "torchlayers"):
        shutil.rmtree(to / name, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "_C*.so", "_C.torch.txt")
        shutil.copytree(ROOT / name, to / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy2(ROOT / name, to / name)


def pinned(wheel: Path, version: str, output: Path) -> Path:
    """Writes the wheel with torch's minor version in its version and its requirement."""
    minor = ".".join(version.split(".")[:2])
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        run([sys.executable, "-m", "wheel", "unpack", "--dest", folder, str(wheel)], "unpacking")
        (unpacked,) = Path(folder).iterdir()
        (info,) = unpacked.glob("*.dist-info")
        own = info.name.removesuffix(".dist-info")
        metadata = info / "METADATA"
        metadata.write_text(pinned_metadata(metadata.read_text("utf-8"), minor), "utf-8")
        info.rename(info.with_name(f"{own}+torch{minor}.dist-info"))
        pack = [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(output), str(unpacked)]
        run(pack, "packing")
    return output / wheel.name.replace(own, f"{own}+torch{minor}", 1)


def pinned_metadata(text: str, minor: str) -> str:
    text = re.sub(r"^(Version: .*)$", rf"\1+torch{minor}", text, count=1, flags=re.MULTILINE)
    required = rf"Requires-Dist: torch=={minor}.*"
    return re.sub(r"^Requires-Dist: torch[<>=!~].*$", required, text, count=1, flags=re.MULTILINE)


def try_in_fresh_environment(wheel: Path, interpreter: str, version: str) -> str:
    """Installs the wheel where nothing else is, and takes a gradient there."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        environment = Environment(Path(folder) / "environment", interpreter)
        environment.pip("install", "--quiet", f"torch=={version}", str(wheel))
        trial = [str(environment.python), "-c", TRIAL]
        there = run(trial, "the wheel does not work").strip()
    return f"import and gradient work with torch {there}"


def table(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown."""
    head = ("Python", "torch", "wheel", "size", "time to build", "result")
    cells = [
        (row.python, row.torch, row.wheel, row.size, row.built, row.result.replace("|", "/"))
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    lines = [head, tuple("-" * width for width in widths), *cells]
    padded = [map(str.ljust, line, widths) for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


if __name__ == "__main__":
    main()
