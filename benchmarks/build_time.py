"""Prints the CPU seconds that a build takes: one line per unit, and under it one line per file.

    make build-time

A file's seconds are those of compiling it alone, minus those of an empty file: what it adds to its
unit. The bar for a clean build of the extension is 40 times what ATen's headers take.
"""

import importlib.util
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BAR = 40


def seconds(command: list[str]) -> float:
    """CPU time of a command and its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def clean_build(folder: str) -> list[str]:
    return [
        *(sys.executable, "setup.py", "build_ext", "--build-lib", f"{folder}/lib"),
        *("--build-temp", f"{folder}/temp"),
    ]


def compile_commands(build: Path) -> dict[str, list[str]]:
    """The compile command of each unit, by the unit's name."""
    listed = subprocess.run(
        [sys.executable, "-m", "ninja", "-C", str(build), "-t", "commands"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    commands = [shlex.split(line) for line in listed.splitlines() if " -c " in line]
    return {Path(_source(command)).stem: command for command in commands}


def _source(command: list[str]) -> str:
    return next(word for word in command if word.endswith(".cpp"))


def alone(command: list[str], source: str) -> list[str]:
    changed = [source if word == _source(command) else word for word in command]
    changed[changed.index("-o") + 1] = "/dev/null"
    changed[changed.index("-MF") + 1] = "/dev/null"
    return changed


def units() -> dict[str, list[Path]]:
    """The units as setup.py defines them."""
    spec = importlib.util.spec_from_file_location("torchlayers_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    found: dict[str, list[Path]] = setup.units()
    return found


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # print each line at once: the whole takes minutes
    os.chdir(ROOT)
    os.environ["TORCH_NO_COMPILER_WRAPPER"] = "1"  # files cached by ccache would take no time
    with tempfile.TemporaryDirectory() as folder:
        whole = seconds(clean_build(folder))
        build = Path(folder) / "temp"
        commands = compile_commands(build)
        some = next(iter(commands.values()))
        aten = Path(folder) / "aten.cpp"
        aten.write_text("#include <ATen/ATen.h>\n")
        folders = [word for word in some if word.startswith("-I")]
        headers = seconds([some[0], "-std=c++20", "-fsyntax-only", *folders, str(aten)])
        empty = Path(folder) / "empty.cpp"
        empty.write_text("\n")
        nothing = seconds(alone(some, str(empty)))
        print(f"the whole build {whole:.0f} s, {whole / headers:.0f} times ATen's headers", end="")
        print(f" ({headers:.1f} s; the bar is {BAR}); each unit begins with {nothing:.1f} s")
        for name, sources in units().items():
            print(f"{seconds(commands[name]):6.1f} s  {name}")
            for source in sources:
                own = seconds(alone(commands[name], str(source))) - nothing
                print(f"    {own:6.1f} s  {source.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
