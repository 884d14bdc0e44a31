"""What the build takes, in seconds of the processor: a unit a line, and under it a file a line.

    make build-time

A file's seconds are those of compiling it alone, less those of an empty file: what it adds to its
unit. The bar is 40 times what ATen's headers take, from a clean tree to the extension.
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
    """The processor's, of a command and what it starts."""
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
    """The command of each unit, by its name."""
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
    """setup.py's own."""
    spec = importlib.util.spec_from_file_location("torchlayers_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    found: dict[str, list[Path]] = setup.units()
    return found


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # a line as it is known: all of them take minutes
    os.chdir(ROOT)
    os.environ["TORCH_NO_COMPILER_WRAPPER"] = "1"  # what ccache knows already takes no time
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
